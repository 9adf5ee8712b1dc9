"""New judgments: JSON lines and pages."""

import json

import pytest

from lib.errors import BadInput
from workloads.legal.generated import ROLES

TEXT = "The appellant was employed as a clerk.\nIt was contended that <b>wages</b> & notice.\nThe appeal is allowed.\n"


def test_every_sentence_has_a_role_and_probabilities_as_json_lines_and_on_a_page_that_is_escaped(legal, tmp_path):
    new, out = tmp_path / "new", tmp_path / "out"
    (new / "deep").mkdir(parents=True)
    (new / "one.txt").write_text(TEXT)
    (new / "deep" / "two.txt").write_text(TEXT * 3)
    task = legal({"training.micro_batch": 2})
    answers = task.predict([task.model().eval()], new, out)
    assert {name: len(rows) for name, rows in answers.items()} == {"one": 3, "deep/two": 9}
    rows = [json.loads(line) for line in (out / "deep" / "two.jsonl").read_text().splitlines()]
    assert rows == answers["deep/two"] and [row["sentence"] for row in rows] == list(range(1, 10))
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-3)
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["role"]]
    text, best = (out / "one.html").read_text(), answers["one"][0]
    assert "&lt;b&gt;wages&lt;/b&gt; &amp; notice" in text and "<b>wages" not in text
    assert all(f"{role} (" in text for role in ROLES) and text.count("title=") == 3
    assert f'title="{best["role"]}: {best["probability"]:.0%}' in text and "@media print" in text
    for name, sentence in (("nothing", "There is no"), ("empty", "has 0 text files")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(BadInput, match=sentence):
            task.predict([], tmp_path / name, None)


def test_a_sentences_answer_is_its_own_in_any_batch_and_that_of_several_models_their_mean(legal, tmp_path):
    (tmp_path / "new.txt").write_text(TEXT)
    task = legal({"workload.head.position": False})
    one, other = task.model().eval(), task.model().eval()
    one.weight.fill_(1.0)
    other.weight.fill_(0.0)
    found = [task.predict(models, tmp_path / "new.txt", None)["new"] for models in ([one], [other], [one, other])]
    shares = [[row["probabilities"]["Facts"] for row in rows] for rows in found]
    assert all(min(a, b) - 1e-4 <= both <= max(a, b) + 1e-4 for a, b, both in zip(*shares, strict=True))
    task.config = legal({"workload.head.position": False, "training.micro_batch": 1}).config
    assert task.predict([one], tmp_path / "new.txt", None)["new"] == found[0]


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
