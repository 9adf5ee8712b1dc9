"""Sentences of running text, with the abbreviations of the courts."""

import pytest

from tests.workloads.legal.judgments import CORPUS
from workloads.legal.documents import read
from workloads.legal.sentences import MARKS, as_in_corpus, final_marks, split_sentences, split_text
from workloads.legal.settings import Settings


@pytest.mark.parametrize(
    "sentences",
    [
        ["The appeal is heard.", "It is dismissed."],
        ["Mr. A. K. Rao, for the appellant, relies on Art. 14.", "That is of no help."],
        ["See State of U.P. v. Ram, (1990) 2 S.C.C. 5 at p. 12.", "We agree."],
        ["Messrs. Tata Sons Ltd. is the owner.", "No. 5 is not."],
        ["The suit is against Tata Sons Ltd.", "The trial court decreed it."],
        ["He lived in U.P.", "The police came at 5.30 p.m. on 12.3.1996.", "He was gone."],
        ["Why?", "Because Sec. 5 says so!", "The court (per Rao, J.) held so."],
        ['He said "I am here."', '"You are not," said the other.'],
        ["12. The High Court reversed the decree.", "13. Hence this appeal."],
        ["(iv) There was no notice.", "(v) There was no hearing."],
        ["It cost Rs. 500 in all."],
        ["no full stop at the end"],
        [],
    ],
)
def test_a_paragraph_is_split_where_its_sentences_end(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_broken_lines_are_joined_paragraphs_a_line_are_split_and_sentences_a_line_are_not():
    text = "The appellant was\nconvicted of theft. He\nappealed to the\nHigh Court.\n\nThe State\ndid not appear.\n"
    wanted = [(1, "The appellant was convicted of theft."), (2, "He appealed to the High Court.")]
    assert split_text(text) == [*wanted, (6, "The State did not appear.")]
    paragraph = "The first. The second. The third."
    assert split_text(f"{paragraph}\n{paragraph}") == [
        (line, f"The {word}.") for line in (1, 2) for word in ("first", "second", "third")
    ]
    lines = ["The first is here. Or there", "The second", "The third", "The fourth", "The fifth"]
    assert split_text("\n".join(lines)) == [*enumerate(lines, 1)]


STRIPPED = ["He appealed to the High Court", "What is the test", "The appeal (No. 5) is dismissed"] * 50


def test_a_sentence_ends_as_those_of_the_corpus_do():
    whole = [f"{sentence}." for sentence in STRIPPED]
    assert final_marks([*STRIPPED, "once in a hundred and fifty."]) == "" and final_marks(whole) == "."
    for sentence in ("It is so.", "It is so .", 'It is "so."', "Is it so?", "It is (so).)"):
        assert as_in_corpus(sentence, "") == sentence.rstrip('.?") ')
        assert as_in_corpus(sentence, MARKS) == sentence
    assert as_in_corpus("Is it so?", ".") == "Is it so" and as_in_corpus("...", "") == "..."


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_the_sample_corpus_has_no_final_marks_at_all():
    assert final_marks([sentence for one in read(CORPUS, Settings())[0] for sentence in one.sentences]) == ""
