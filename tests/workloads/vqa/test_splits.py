"""Whole pictures are dealt to parts."""

from collections import Counter
from dataclasses import replace

import pytest

from lib.errors import BadInput
from tests.workloads.vqa.files import record
from workloads.vqa.records.settings import Split
from workloads.vqa.splits import split

RECORDS = [record(10 * p + q, p, kind="ABC"[(p + q) % 3]) for p in range(40) for q in range(5)]


def pictures(records):
    return {one.picture for one in records}


def test_all_questions_of_a_picture_are_in_one_part_and_each_record_in_one():
    parts = split(RECORDS, Split(validation=0.25, test=0.25), 0)
    assert sorted(one.number for part in parts.values() for one in part) == sorted(one.number for one in RECORDS)
    sides = [pictures(part) for part in parts.values()]
    assert list(parts) == ["train", "validation", "test"] and [len(side) for side in sides] == [20, 10, 10]
    assert not sides[0] & sides[1] and not (sides[0] | sides[1]) & sides[2]


def test_every_part_has_its_share_of_each_type():
    records = [record(p, kind="RARE" if p % 10 == 0 else "COMMON") for p in range(60)]
    parts = split(records, Split(0.2, 0.2), 0).values()
    assert [Counter(one.kind for one in part)["RARE"] for part in parts] == [4, 1, 1]


def test_the_parts_hang_on_pictures_and_seed_and_not_on_the_order_of_records():
    parts, others = split(RECORDS, Split(), 1), split(RECORDS[::-1], Split(), 1)
    assert all(pictures(parts[name]) == pictures(others[name]) for name in parts)
    assert pictures(split(RECORDS, Split(), 2)["test"]) != pictures(parts["test"])


@pytest.mark.parametrize("given", [("train", "test"), ("train", "validation"), ("train", "validation", "test")])
def test_parts_of_the_files_count_and_what_is_missing_comes_out_of_the_training(given):
    records = [replace(one, part=given[int(one.picture[1:]) % len(given)]) for one in RECORDS]
    parts = split(records, Split(), 0)
    for name in given[1:]:
        assert {one.number for one in parts[name]} == {one.number for one in records if one.part == name}
    assert all(parts.values()) and {one.part for one in parts["train"]} == {"train"}
    own = split(records, Split(given=False), 0)
    assert {one.part for one in own["test"]} == set(given)


def test_parts_of_some_files_or_of_one_alone_do_not_count():
    for records in ([replace(one, part="train") for one in RECORDS], [replace(RECORDS[0], part="test"), *RECORDS[1:]]):
        assert {name: pictures(part) for name, part in split(records, Split(), 0).items()} == {
            name: pictures(part) for name, part in split(RECORDS, Split(), 0).items()
        }


def test_a_picture_in_two_parts_is_refused():
    records = [replace(one, part="test" if one.number % 2 else "train") for one in RECORDS]
    with pytest.raises(BadInput, match="are both in train and in test"):
        split(records, Split(), 0)


def test_too_few_pictures_are_refused_with_the_part_that_is_empty():
    with pytest.raises(BadInput, match="No picture is left for validation: there are 2 in all"):
        split([record(1), record(2)], Split(), 0)
