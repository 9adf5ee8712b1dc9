"""A submission goes to a competition by the real client, and its score comes back beside what was expected."""

from pathlib import Path

import pytest

from tests.trainbook.kaggle.stub import KEY
from trainbook.commands import main
from trainbook.supervised.expected import Expected, read


@pytest.fixture
def submission(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("out/submission.csv")
    path.parent.mkdir()
    path.write_text("id,price\n1,2.5\n2,3.5\n")
    return path


def test_what_is_expected_goes_along_and_stands_beside_the_score(stub, submission, capsys):
    expected = Expected("macro_f1", "max", 0.87, 0.85, 0.89, members=["a", "b"], share=0.5)
    expected.write(submission.parent)
    assert read(submission.parent) == expected
    assert main(["kaggle", "score", "titanic"]) == 0
    assert "no submission to titanic yet" in capsys.readouterr().out
    assert main(["kaggle", "submit", "titanic", str(submission), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "Nothing was sent" in out and "2 rows of id, price" in out
    assert "expected: macro_f1 0.870 [0.850, 0.890] by folds" in out
    assert not stub.count("StartSubmissionUpload") and not stub.submissions
    assert main(["kaggle", "submit", "titanic", str(submission)]) == 0
    assert "4 submissions are left today" in capsys.readouterr().out
    assert stub.submissions[0]["data"] == submission.read_text()
    given = [str(submission), "--message", "expected: macro_f1 0.880 [0.870, 0.890] by folds"]
    assert main(["kaggle", "submit", "titanic", *given]) == 0
    assert main(["kaggle", "submit", "titanic", str(submission), "--message", "by hand"]) == 0
    capsys.readouterr()
    assert main(["kaggle", "score", "titanic"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert "0.86" in rows[0] and "interval" not in rows[0]
    assert rows[1].rstrip().endswith("below the interval")
    assert rows[2].rstrip().endswith("in the interval")
    assert "macro_f1 0.870 [0.850, 0.890]" in rows[2]


def test_what_cannot_be_sent_is_refused_and_silence_is_no_second_submission(
    stub, submission, capsys
):
    cases = {
        "other.csv": "There is no file other.csv",
        "empty.csv": "has no rows",
        "key.csv": "credential",
    }
    Path("empty.csv").write_text("id,price\n")
    Path("key.csv").write_text(f"id,price\n1,{KEY}\n")
    for name, words in cases.items():
        assert main(["kaggle", "submit", "titanic", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["kaggle", "submit", "kaggle.com/c/titanic", str(submission)]) == 2
    assert "last part of its address" in capsys.readouterr().err
    assert main(["kaggle", "submit", "spaceship", str(submission)]) == 2
    assert "Kaggle answers so to wrong names" in capsys.readouterr().err
    stub.failures["CreateSubmission"] = [503]
    assert main(["kaggle", "submit", "titanic", str(submission)]) == 1
    assert "It may have arrived: look with" in capsys.readouterr().err
    assert stub.submissions == [] and stub.count("CreateSubmission") == 2
