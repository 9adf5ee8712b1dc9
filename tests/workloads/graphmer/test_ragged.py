"""Ragged rows and postings beside plain loops."""

from collections import Counter

import numpy as np

from workloads.graphmer.ragged import Groups, Postings, expand, find


def test_rows_expand_to_their_places():
    row, at = expand(np.array([5, 0, 9]), np.array([2, 0, 3]))
    assert row.tolist() == [0, 0, 2, 2, 2] and at.tolist() == [5, 6, 9, 10, 11]


def test_what_is_not_there_is_at_minus_one():
    assert find(np.array([2, 4, 9]), np.array([4, 5, 10, 2])).tolist() == [1, -1, -1, 0]
    assert find(np.array([], int), np.array([4])).tolist() == [-1]


def test_groups_give_all_places_of_a_value():
    groups = Groups(np.array([3, 1, 3, 7]))
    row, place = groups.places(np.array([7, 5, 3]))
    assert list(zip(row, place, strict=True)) == [(0, 3), (2, 0), (2, 2)]
    assert groups.sizes(np.array([3, 5])).tolist() == [2, 0]


def test_postings_count_the_tails_of_a_key_and_those_of_one_file():
    draw = np.random.default_rng(0)
    key, tail, file = (draw.integers(0, most, 300) for most in (5, 7, 4))
    postings = Postings(key, tail, file, 7, 4)
    asked, of_file = np.array([3, 9, 0]), np.array([2, 2, 1])
    row, found, number = postings.get(asked)
    want = [Counter(tail[key == k].tolist()) for k in asked]
    assert [dict(zip(found[row == i].tolist(), number[row == i].tolist(), strict=True)) for i in range(3)] == want
    row, found, number = postings.own(asked, of_file)
    want = [Counter(tail[(key == k) & (file == f)].tolist()) for k, f in zip(asked, of_file, strict=True)]
    assert [dict(zip(found[row == i].tolist(), number[row == i].tolist(), strict=True)) for i in range(3)] == want
    assert len(postings.get(asked, longest=6)[0]) < len(postings.get(asked)[0])
