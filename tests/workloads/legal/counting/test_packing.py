"""Arrays and words as text, and text that is none."""

import base64
import zlib

import numpy as np
import pytest

from workloads.legal.counting import packing


def test_arrays_and_words_come_back_as_they_were():
    values = np.arange(12, dtype="<f2").reshape(3, 4) / 7
    assert (packing.unpacked_array(packing.packed_array(values, "<f2"), "<f2", [3, 4]) == values).all()
    assert packing.unpacked_array(packing.packed_array(values[:0], "<f2"), "<f2", [0, 4]).shape == (0, 4)
    for words in (("a", "of the", "é"), ()):
        assert packing.unpacked_words(packing.packed_words(words)) == words


@pytest.mark.parametrize("text", ["", "no base64!", base64.b64encode(b"no zlib").decode(), None, 7])
def test_what_was_not_packed_is_refused(text):
    with pytest.raises(ValueError, match="packed bytes"):
        packing.unpacked(text, 100)


def test_more_than_is_expected_is_not_unpacked():
    bomb = base64.b64encode(zlib.compress(bytes(10**6))).decode()
    with pytest.raises(ValueError, match="more than 100"):
        packing.unpacked(bomb, 100)
    with pytest.raises(ValueError, match="8 packed bytes are not the 12"):
        packing.unpacked_array(packing.packed(bytes(8)), "<f4", [3])
    with pytest.raises(ValueError, match="cut off"):
        packing.unpacked(base64.b64encode(zlib.compress(bytes(100))[:-4]).decode(), 200)
