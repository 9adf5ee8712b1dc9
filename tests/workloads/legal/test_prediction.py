"""New judgments: JSON lines and pages."""

import json

import pytest

from lib.errors import BadInput
from workloads.legal.generated import ROLES

TEXT = "The appellant was employed as a clerk.\nIt was contended that <b>wages</b> & notice.\nThe appeal is allowed.\n"


@pytest.fixture
def answered(legal, tmp_path):
    """The answers to two judgments, and the folder that they were written to."""
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "one.txt").write_text(TEXT)
    (tmp_path / "new" / "deep" / "two.txt").write_text(TEXT * 3)
    task = legal({"training.micro_batch": 2})
    return task.predict([task.model().eval()], tmp_path / "new", tmp_path / "out"), tmp_path / "out"


def test_every_sentence_has_a_role_and_probabilities_as_json_lines(answered):
    answers, out = answered
    assert {name: len(rows) for name, rows in answers.items()} == {"one": 3, "deep/two": 9}
    rows = [json.loads(line) for line in (out / "deep" / "two.jsonl").read_text().splitlines()]
    assert rows == answers["deep/two"] and [row["sentence"] for row in rows] == list(range(1, 10))
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-3)
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["role"]]


def test_a_sentences_answer_is_its_own_whatever_the_lengths_of_others(legal, tmp_path):
    """Sentences are batched by their length; with the network alone equal sentences must have equal answers."""
    (tmp_path / "new.txt").write_text(TEXT)
    task = legal({"workload.head.position": False})
    model = task.model().eval()
    model.weight.fill_(1.0)
    alone = task.predict([model], tmp_path / "new.txt", None)["new"]
    task.config = legal({"workload.head.position": False, "training.micro_batch": 1}).config
    assert task.predict([model], tmp_path / "new.txt", None)["new"] == alone


def test_pasted_text_is_read_as_the_training_text_is_and_answered_as_it_stands(legal, tmp_path, learned):
    """The sample corpus has no final full stops, and a lawyer's text has them."""
    (tmp_path / "with.txt").write_text(TEXT)
    (tmp_path / "without.txt").write_text(TEXT.replace(".\n", "\n"))
    task = legal()
    model = task.model().eval()
    model.weight.fill_(1.0)
    model.output.weight.data.mul_(50)  # so that a token more is seen in four digits

    def shares():
        found = [task.predict([model], tmp_path / name, None) for name in ("with.txt", "without.txt")]
        assert found[0]["with"][0]["text"].endswith("clerk.") and found[1]["without"][0]["text"].endswith("clerk")
        return [[row["probabilities"] for rows in one.values() for row in rows] for one in found]

    assert learned["final_marks"] == "." and shares()[0] != shares()[1]
    task.take_learned({**learned, "final_marks": ""})
    assert shares()[0] == shares()[1]


def test_several_models_answer_by_their_mean(legal, tmp_path):
    (tmp_path / "new.txt").write_text(TEXT)
    task = legal()
    one, other = task.model().eval(), task.model().eval()
    other.weight.fill_(0.0)
    found = [task.predict(models, tmp_path / "new.txt", None)["new"] for models in ([one], [other], [one, other])]
    shares = [[row["probabilities"]["Facts"] for row in rows] for rows in found]
    assert all(min(a, b) - 1e-4 <= both <= max(a, b) + 1e-4 for a, b, both in zip(*shares, strict=True))


def test_a_page_has_every_sentence_escaped_with_its_probabilities_and_a_legend(answered):
    answers, out = answered
    text = (out / "one.html").read_text()
    assert "&lt;b&gt;wages&lt;/b&gt; &amp; notice" in text and "<b>wages" not in text
    assert all(f"{role} (" in text for role in ROLES) and text.count("title=") == 3
    best = answers["one"][0]
    assert f'title="{best["role"]}: {best["probability"]:.0%}' in text and "@media print" in text


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_holds_no_text_is_refused(legal, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="There is no|has 0 text files"):
        legal().predict([], tmp_path / name, None)
