"""Words and byte-pair pieces of code."""

from collections import Counter

import numpy as np
import pytest

from workloads.codegraph import text
from workloads.graphmer import tokens


def test_words_keep_identifiers_and_the_signs_that_tell_roles():
    assert text.words("x = obj.call(1, 'a')[0]  # note") == ["x", "=", "obj", ".", "call", "(", "a", "note"]
    assert tokens.name_parts("json.decoder.JSONDecoder") == ["JSONDecoder", "decoder", "json"]
    assert tokens.name_parts("name::open") == ["open", "name"]


WORDS = ["open_door", "close_door", "door", "JSONDecoder", "decoder"]


def learned():
    return tokens.cut(tokens.learn(Counter(WORDS * 20), 300), WORDS)


def test_pieces_of_words_come_with_their_word_and_their_place_in_it():
    pieces = learned()
    ids, owner, within = pieces.expand(np.array([2, 0, 2]))
    lengths = pieces.lengths(np.array([2, 0, 2]))
    assert lengths.sum() == len(ids) and np.bincount(owner).tolist() == lengths.tolist()
    assert within.tolist() == [place for length in lengths for place in range(length)]
    assert ids[owner == 0].tolist() == ids[owner == 2].tolist()


def test_pieces_do_not_cross_the_seams_of_names():
    pieces = learned()
    door, open_door = (pieces.expand(np.array([i]))[0].tolist() for i in (2, 0))
    assert len(door) == 1 and open_door[-1] != door[0] and len(open_door) == 2  # "_door" is a piece of its own


def test_words_that_were_not_learned_from_are_cut_into_the_same_pieces_by_what_was_written_down():
    text = tokens.learn(Counter(WORDS * 20), 300)
    assert isinstance(text, str)
    together, alone = tokens.cut(text, [*WORDS, "doors", "open"]), tokens.cut(text, WORDS)
    assert np.array_equal(together.flat[: len(alone.flat)], alone.flat)
    doors, door = (together.expand(np.array([i]))[0].tolist() for i in (len(WORDS), WORDS.index("door")))
    assert doors[: len(door)] != [] and max(together.flat) < 300 and tokens.UNKNOWN not in doors
    with pytest.raises(ValueError, match="pieces of words cannot be read"):
        tokens.cut("{}", WORDS)
