"""The text of source files in the encodings that they declare."""

from workloads.codegraph.text import decode, words_by_line


def test_a_declared_encoding_counts_and_lines_end_as_for_python():
    assert decode("# coding: latin-1\ncafé = 1\n".encode("latin-1")) == "# coding: latin-1\ncafé = 1\n"
    assert decode(b"a\r\nb\rc\n") == "a\nb\nc\n" and decode(b"\xef\xbb\xbfa") == "a"
    assert decode(b"caf\xe9 = 1") == "caf\N{REPLACEMENT CHARACTER} = 1"


def test_words_are_numbered_as_they_come_with_the_places_where_lines_begin():
    own, numbers, starts = words_by_line(b"a.b(a)\n\nc\n")
    assert (own, list(numbers), list(starts)) == (["a", ".", "b", "(", "c"], [0, 1, 2, 3, 0, 4], [0, 5, 5, 6, 6])
