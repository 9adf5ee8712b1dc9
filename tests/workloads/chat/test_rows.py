"""Conversations in the forms that they come in, their splits, and what retrieval answers."""

import pytest

from lib.errors import BadInput
from tests.workloads.chat.conftest import calls, write_rows
from workloads.chat import generated, rows
from workloads.chat.messages import turns_of
from workloads.chat.rows import Neighbours, Row

TURNS = (("system", "be brief"), ("user", "one and one"), ("assistant", "2"))
FORMS = [
    {"messages": [{"role": role, "content": content} for role, content in TURNS]},
    {
        "messages": [
            {"role": role, "content": [{"type": "text", "text": content}]}
            for role, content in TURNS
        ]
    },
    {
        "conversations": [
            {"from": name, "value": TURNS[k][1]}
            for k, name in enumerate(("system", "human", "gpt"))
        ]
    },
    {"system": "be brief", "prompt": "one and one", "answer": "2"},
    {"system": "be brief", "prompt": "one and one", "completion": "2"},
    {"system": "be brief", "question": "one and one", "answer": "2"},
    {"system": "be brief", "instruction": "one and one", "input": "", "output": "2"},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_in_every_form(form):
    assert rows.row_of(turns_of(form)) == Row(TURNS[:2], "2")


def test_an_instruction_is_followed_by_its_input_and_an_object_as_an_answer_becomes_json():
    record = {"system": "", "instruction": "add", "input": "1 and 2", "output": {"sum": 3}}
    assert turns_of(record) == (("user", "add\n1 and 2"), ("assistant", '{"sum": 3}'))
    assert turns_of({"prompt": "two", "answer": [1, 2]})[1] == ("assistant", "[1, 2]")


def test_lines_that_are_no_rows_are_refused_together_by_file_and_line_at_most_ten(tmp_path):
    write_rows(tmp_path / "test.jsonl", [{"text": k} for k in range(20)])
    (tmp_path / "train.jsonl").write_text('{"prompt": "x", "answer": "y"}\n\n{"prompt": \n')
    with pytest.raises(BadInput, match="^21 rows cannot be used:\n") as refused:
        rows.read(tmp_path)
    assert str(refused.value).count("jsonl:") == 10
    assert "test.jsonl:10: it has the keys text.\n" in str(refused.value)


@pytest.mark.parametrize(
    ("files", "given"),
    [
        (["all"], set()),
        (["train", "val", "test"], {"validation", "test"}),
        (["train", "test"], {"test"}),
    ],
)
def test_files_are_splits_by_their_names_and_what_lacks_is_dealt_from_the_rest(
    files, given, tmp_path
):
    made = {name: [{"prompt": f"{name} {k}", "answer": "x"} for k in range(60)] for name in files}
    for name, records in made.items():
        write_rows(tmp_path / f"{name}.jsonl", records)
    parts = rows.read(tmp_path)
    assert all(parts.values())
    assert sum(map(len, parts.values())) == 60 * len(files)
    for part in given:
        assert {row.question.split()[0] for row in parts[part]} == {
            "val" if part == "validation" else part
        }


def test_rows_that_ask_the_same_are_dealt_to_one_split(tmp_path):
    write_rows(
        tmp_path / "all.jsonl", [{"prompt": f"Ask {k // 3}", "answer": str(k)} for k in range(150)]
    )
    parts = rows.read(tmp_path)
    asked = {part: {row.question for row in some} for part, some in parts.items()}
    assert all(asked.values())
    assert not asked["train"] & (asked["validation"] | asked["test"])


def test_other_text_is_cut_into_pieces_which_begin_again():
    text = "".join(map(chr, range(97, 123)))
    assert [row.turns[0][1] for row in rows.pieces(text, 4, 10)] == [
        text[:10],
        text[10:20],
        text[:10],
        text[10:20],
    ]


def test_values_and_a_fifth_of_the_combinations_of_the_test_are_never_trained():
    train, test = (dict(generated.pairs(0, split, 300)) for split in ("train", "test"))

    def words(pairs):
        return {w for prompt in pairs for w in prompt.split() if w[0].isupper() and w != "I"}

    assert not words(train) & words(test)
    assert not set(generated.combinations(True)) & set(generated.combinations(False))
    share = len(generated.combinations(True)) / len(generated.combinations(False))
    assert 0.15 < share < 0.35


def test_no_sentence_of_a_held_out_split_is_in_another_one():
    parts = generated.splits(0, 3000, 100, 300)
    prompts = [{row.question for row in parts[part]} for part in ("train", "validation", "test")]
    assert len(set().union(*prompts)) == sum(map(len, prompts))
    assert len(prompts[2]) > 280


def test_a_near_answer_takes_the_values_of_the_question():
    pairs = {
        "tell Toverri that lunch is late": '{"to": "Toverri", "text": "lunch is late"}',
        "weather for Dalga": '{"city": "Dalga"}',
    }
    near = Neighbours([Row((("user", prompt),), answer) for prompt, answer in pairs.items()])
    row = Row((("system", "brief"), ("user", "weather for Fever")), "")
    assert near.replaced(row) == '{"city": "Fever"}'
    examples = [("user", "weather for Dalga"), ("assistant", '{"city": "Dalga"}')]
    assert near.prompted(row, 1, lambda _: True).turns == (row.turns[0], *examples, row.turns[1])
    assert near.prompted(row, 2, lambda more: len(more.turns) < 6) == near.prompted(
        row, 1, lambda _: True
    )


def test_retrieval_with_values_replaced_is_a_strong_baseline_on_the_generated_task():
    near = Neighbours(calls(1000))
    right = [near.replaced(row) == row.answer for row in calls(100, "test")]
    assert 0.3 < sum(right) / len(right) < 0.8
