"""Whole pictures are dealt to parts."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lib.errors import BadInput
from tests.workloads.vqa.files import record
from workloads.vqa.data import split
from workloads.vqa.settings import Split

RECORDS = [record(10 * p + q, p, kind="ABC"[(p + q) % 3]) for p in range(40) for q in range(5)]


def pictures(records):
    return {one.picture for one in records}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(some.randoms(use_true_random=False), some.integers(0, 5))
def test_each_record_is_in_one_part_with_its_picture_whatever_their_order(draw, seed):
    parts = split(RECORDS, Split(0.25, 0.25), seed)
    assert sorted(one.number for part in parts.values() for one in part) == sorted(one.number for one in RECORDS)
    sides = [pictures(part) for part in parts.values()]
    assert list(parts) == ["train", "validation", "test"] and [len(side) for side in sides] == [20, 10, 10]
    assert not sides[0] & sides[1] and not (sides[0] | sides[1]) & sides[2]
    counts = [Counter(one.kind for one in part) for part in parts.values()]
    assert all(max(own.values()) - min(own.values()) <= 8 for own in counts), "each has its share of each type"
    shuffled = draw.sample(RECORDS, len(RECORDS))
    assert [pictures(part) for part in split(shuffled, Split(0.25, 0.25), seed).values()] == sides


@pytest.mark.parametrize("names", [("train", "test"), ("train", "validation"), ("train", "validation", "test")])
def test_parts_of_the_files_count_and_what_is_missing_comes_out_of_the_training(names):
    records = [replace(one, part=names[int(one.picture[1:]) % len(names)]) for one in RECORDS]
    parts = split(records, Split(), 0)
    for name in names[1:]:
        assert {one.number for one in parts[name]} == {one.number for one in records if one.part == name}
    assert all(parts.values()) and {one.part for one in parts["train"]} == {"train"}
    assert {one.part for one in split(records, Split(given=False), 0)["test"]} == set(names)


def test_a_picture_in_two_parts_and_too_few_pictures_are_refused():
    records = [replace(one, part="test" if one.number % 2 else "train") for one in RECORDS]
    with pytest.raises(BadInput, match="are both in train and in test"):
        split(records, Split(), 0)
    with pytest.raises(BadInput, match="No picture is left for validation: there are 2 in all"):
        split([record(1), record(2)], Split(), 0)
