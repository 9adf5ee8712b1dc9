"""Mounted inputs: the one with judgments is found among others."""

import json

import pytest

from lib.task import find_task, locate_data

LINES = "The appeal is allowed .\tRuling\n"


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put("owner/slug/file", text): a file in a mounted data set."""
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))

    def write(name, text):
        path = tmp_path / "input" / "datasets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def located():
    cls = find_task("legal")
    return locate_data("", cls.sentinels, cls.homes)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("data/text/1953_S_1.txt", LINES * 3),
        ("train.json", json.dumps([{"labels": ["Ruling"], "segments": ["The appeal is allowed ."]}])),
        ("all.csv", "Text,Label\nThe appeal is allowed .,Ruling\n"),
    ],
)
def test_judgments_are_found_beside_an_encoder_and_tables_of_others(put, tmp_path, file, text):
    put("ada/encoder/config.json", json.dumps({"id2label": {"0": "A"}, "label2id": {"A": 0}}))
    put("ada/encoder/vocab.txt", "[PAD]\n[UNK]\n")
    put("ada/encoder/model.safetensors", "")
    put("ada/prices/prices.csv", "date,price\n1,2\n")
    put("ada/novel/chapter.txt", "It was a dark night.\nNobody spoke.\n")
    assert located() is None
    put(f"law/judgments/{file}", text)
    assert located().is_relative_to(tmp_path / "input" / "datasets" / "law" / "judgments")


def test_a_folder_with_a_readme_above_the_judgments_is_entered_whole(put, tmp_path):
    put("law/judgments/README.txt", "Fifty judgments.\n")
    put("law/judgments/categories.txt", "Civil\t1953_S_1\n")
    put("law/judgments/data/text/1953_S_1.txt", LINES)
    assert located() == tmp_path / "input" / "datasets" / "law" / "judgments"
