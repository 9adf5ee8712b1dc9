"""Whole documents in parts, by folds and by category, and what gives a leak away."""

from collections import Counter
from dataclasses import replace

import pytest

from lib.errors import BadInput
from tests.workloads.legal.conftest import judgments
from workloads.legal import splits

GROUPS = ("civil", "criminal", "tax")


def test_every_document_is_tested_in_one_fold_and_no_part_shares_a_document_whatever_their_order():
    documents, tested = judgments(20, GROUPS), []
    for fold in range(4):
        parts = splits.deal(documents, folds=4, fold=fold, validation=0.25)
        assert sorted([*parts.train, *parts.validation, *parts.test]) == [*range(20)]
        assert len(parts.validation) in (3, 4) and len(parts.test) == 5
        counts = Counter(documents[place].category for place in parts.test)
        assert all(1 <= counts[group] <= 2 for group in GROUPS), "its share of each category"
        tested += parts.test
    assert sorted(tested) == [*range(20)]
    one, again, other = (splits.deal(documents, seed=seed) for seed in (3, 3, 4))
    assert one == again and one.test != other.test
    turned = splits.deal(documents[::-1], seed=3)
    assert {documents[place].name for place in one.test} == {documents[::-1][place].name for place in turned.test}


def in_files(documents, *files):
    return [replace(one, file=files[number % len(files)]) for number, one in enumerate(documents)]


def names_of(documents, places):
    return {documents[place].file for place in places}


def test_parts_that_files_are_named_for_are_the_split_and_what_they_lack_is_dealt_from_the_training():
    documents = in_files(judgments(12), "set/train.json", "valid.json", "test/a.json")
    parts = splits.deal(documents)
    found = [names_of(documents, part) for part in parts.by_name().values()]
    assert found == [{"set/train.json"}, {"valid.json"}, {"test/a.json"}]
    assert "The split is that of the files" in parts.notes[0] and "workload.split.given: false" in parts.notes[0]
    assert len(names_of(documents, splits.deal(documents, given=False).test)) > 1
    with pytest.raises(BadInput, match=r"fold is 1, and the files' own test .* workload.split.given: false"):
        splits.deal(documents, fold=1)
    for file, held, dealt in (("dev.csv", "validation", "test"), ("test.csv", "test", "validation")):
        documents = in_files(judgments(20), "train.csv", "train.csv", "train.csv", file)
        parts = splits.deal(documents).by_name()
        assert names_of(documents, parts[held]) == {file} and len(parts[held]) == 5
        assert names_of(documents, parts[dealt]) == names_of(documents, parts["train"]) == {"train.csv"}


def test_a_split_that_cannot_be_is_refused():
    for count, changes, sentence in (
        (6, {"folds": 1}, "workload.split.folds is 1, and there are 6 documents: take 2 to 6"),
        (6, {"folds": 7}, "workload.split.folds is 7"),
        (6, {"validation": 0.999}, "No document is left for train"),
        (1, {}, "There is one document alone"),
    ):
        with pytest.raises(BadInput, match=sentence):
            splits.deal(judgments(count, ("tax",)), **changes)


def test_a_copy_under_another_name_is_refused_also_with_a_sentence_more():
    documents = judgments(4)
    copy = replace(documents[0], name="copy", sentences=(*documents[0].sentences, "and one more of five words"))
    copy = replace(copy, file="copy.txt", lines=tuple(range(7, 7 + len(copy))))
    copied = r"copy \(test\) and j00 \(train\), which begin in copy.txt, line 7; j00.txt, line 1"
    with pytest.raises(BadInput, match=copied):
        splits.check_leaks([*documents, copy], {"train": [0, 1], "validation": [2], "test": [3, 4]})
    with pytest.raises(BadInput, match=r"1 document is in two parts: j01 \(test\) and j01 \(train\)"):
        splits.check_leaks(documents, {"train": [0, 1], "test": [1, 2]})


def test_equal_sentences_of_five_words_are_counted_and_short_ones_are_not():
    documents = judgments(3)
    stock = "The order of the court was as follows"
    documents = [replace(one, sentences=(*one.sentences, stock, "Appeal dismissed")) for one in documents]
    notes = splits.check_leaks(documents, {"train": [0], "validation": [1], "test": [2]})
    assert notes == [
        f"Of 5 words and more, 1 sentence stands in {name} and in training, say: {stock.casefold()}"
        for name in ("validation", "test")
    ]
    assert splits.check_leaks(documents, {"train": [0], "test": []}) == []
