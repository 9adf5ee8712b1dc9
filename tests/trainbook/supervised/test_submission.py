"""Submissions: rows by ids in any order, columns by names."""

import bz2
import csv
import gzip
import json
import lzma
import os
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lib.errors import BadInput
from trainbook import Supervised, records
from trainbook.supervised import submission


class Prices(Supervised):
    """The price of a row is what stands in its column x: an id is not read."""

    kind = "numbers"

    def read(self, source):
        rows = records(source, "test.*", numbers=["x"])
        return [(row["x"], row.get("price")) for row in rows]

    def example(self):
        return 0.0, 0.0

    def batch(self, samples, training):
        x = torch.tensor([[x] for x, _ in samples])
        return {"x": x, "labels": torch.tensor([y for _, y in samples])}


class Kinds(Prices):
    """Probabilities of three classes, of which x is the likeliest."""

    kind = "classes"
    classes = ("cat", "dog", "eel")

    def example(self):
        return 0.0, "cat"


class Marks(Kinds):
    kind = "labels"

    def example(self):
        return 0.0, [0.0, 0.0, 0.0]


class Several(Prices):
    """Three numbers of each row: x, x + 1 and x + 2."""

    def example(self):
        return 0.0, [0.0, 0.0, 0.0]

    def outputs(self, model, batch):
        return batch["x"] + torch.arange(3.0)


class Pandas(Prices):
    """Read by pandas, with the mean in the place of what is missing."""

    def read(self, source):
        frame = pd.read_csv(source / "test.csv" if source.is_dir() else source)
        values = frame.x.fillna(frame.x.mean())
        return [(x, None) for x in values.tolist()]


class Numbers(Prices):
    def read(self, source):
        return [(float(row["x"]), None) for row in records(source, "test.*")]


class Dropping(Prices):
    def read(self, source):
        return [sample for sample in super().read(source) if sample[0] > 1]


class Sorted(Prices):
    def read(self, source):
        return sorted(super().read(source))


class Dicts(Prices):
    def read(self, source):
        rows = [*records(source, "test.csv")]
        return [{"Id": row["Id"], "x": float(row["x"]), "y": None} for row in reversed(rows)]

    def example(self):
        return {"Id": "0", "x": 0.0, "y": 0.0}

    def batch(self, samples, training):
        pairs = [(sample["x"], sample["y"]) for sample in samples]
        return super().batch(pairs, training)


class Near(nn.Module):
    """Scores of the classes 0, 1 and 2 by their distance from x, (B, 1) -> (B, 3)."""

    def forward(self, x):
        return -8 * (x - torch.arange(3.0)).abs()


@pytest.fixture
def made(configured, tmp_path):
    """made(Class, test.csv, sample) -> the lines on the submission, and its rows."""

    def make(kind, test, sample, name="test.csv", id_column="", folder=False):
        new = tmp_path / "new"
        new.mkdir(exist_ok=True)
        (new / name).write_bytes(test.encode() if isinstance(test, str) else test)
        (tmp_path / "sample.csv").write_text(sample, "utf-8", newline="")
        task = kind(configured("Heights"))
        model = nn.Identity() if kind.kind == "numbers" else Near()
        model.register_parameter("where", nn.Parameter(torch.zeros(1)))
        source = new if folder else new / name
        out = tmp_path / "submission.csv"
        answers = task.predict([model], source, None)
        text = submission.write(task, answers, source, tmp_path / "sample.csv", out, id_column)
        with out.open(encoding="utf-8", newline="") as file:
            return text, [*csv.reader(file)]

    return make


IDS = [3, 0, 5, 1, 4, 2]
TEST = "Id,x\n" + "".join(f"{number},{number + 0.5}\n" for number in IDS)
RIGHT = [[str(number), str(number + 0.5)] for number in range(6)]
SAMPLE = "Id,price\n" + "".join(f"{number},1\n" for number in range(6))


@pytest.mark.parametrize("kind", [Prices, Pandas, Dicts])
@pytest.mark.parametrize("folder", [False, True])
def test_shuffled_rows_come_out_under_their_ids_whatever_reads_them(made, kind, folder):
    text, rows = made(kind, TEST, SAMPLE, folder=folder)
    assert rows == [["Id", "price"], *RIGHT]
    assert "6 rows joined by the column Id of" in text
    assert "Filled: price." in text


@pytest.mark.parametrize(
    "test",
    [
        pytest.param(TEST.replace("Id", "number"), id="another name"),
        pytest.param(TEST.replace("Id", "ID"), id="other letters"),
        pytest.param(
            TEST.replace("Id", "a,Id").replace("\n", "\n9,").removesuffix("9,"), id="several"
        ),
        pytest.param(TEST, id="semicolons"),
        pytest.param(
            "Id,x\n" + "".join(f'"{number}","{number}.5"\n' for number in IDS), id="quotes"
        ),
        pytest.param(TEST.replace("5,5.5\n", "5,5.5\n\n"), id="a blank line"),
    ],
)
def test_the_column_of_ids_is_found_by_its_name_or_by_its_values(made, test):
    _, rows = made(Prices, test, SAMPLE)
    assert rows[1:] == RIGHT


def test_a_table_in_lines_of_json_has_its_ids_too(made):
    lines = [json.dumps({**pair, "note": "a\u2028b"}) for pair in PAIRS]
    _, rows = made(Numbers, "\n".join(lines), SAMPLE, name="test.jsonl")
    assert rows[1:] == RIGHT


PAIRS = [{"Id": number, "x": number + 0.5} for number in IDS]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("test.csv", TEST.encode("utf-16"), id="UTF-16"),
        pytest.param("test.csv", TEST.encode("utf-8-sig"), id="a mark"),
        pytest.param(
            "test.csv", TEST.replace("\n", "\r\n").rstrip(), id="two line ends, no last one"
        ),
        pytest.param(
            "test.csv", "sep=;\n" + TEST.replace(",", ";"), id="a line with the separator"
        ),
        pytest.param("test.csv", gzip.compress(TEST.encode()), id="gzip under another name"),
        pytest.param("test.csv.bz2", bz2.compress(TEST.encode()), id="bz2"),
        pytest.param("test.tsv.xz", lzma.compress(TEST.replace(",", "\t").encode()), id="xz"),
        pytest.param("test.json", json.dumps(PAIRS, indent=1), id="a list of JSON"),
        pytest.param(
            "test.jsonl",
            "".join(json.dumps({**row, "note": "\ud83d"}) + "\n" for row in PAIRS),
            id="half a letter",
        ),
        pytest.param("test.json", pd.DataFrame(PAIRS).to_json(), id="columns of JSON"),
        pytest.param(
            "test.json", json.dumps(pd.DataFrame(PAIRS).to_dict("list")), id="lists of JSON"
        ),
    ],
)
def test_ids_are_found_in_every_layout_that_is_read(made, name, content):
    text, rows = made(Numbers, content, SAMPLE, name=name)
    assert rows[1:] == RIGHT
    assert f"by the column Id of {name}" in text


def test_ids_are_found_in_parquet(made, monkeypatch):
    # Pickles in its place, since pyarrow may not be there
    monkeypatch.setattr(pd, "read_parquet", pd.read_pickle)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda frame: pickle.dumps(frame))
    content = pickle.dumps(pd.DataFrame(PAIRS))
    _, rows = made(Numbers, content, SAMPLE, name="test.parquet")
    assert rows[1:] == RIGHT


class Headless(Prices):
    def read(self, source):
        rows = records(source, "test.*", columns=["Id", "x"])
        return [(float(row["x"]), None) for row in rows]


def test_ids_of_a_table_without_a_head_are_found_by_their_values(made):
    text, rows = made(Headless, TEST.removeprefix("Id,x\n"), SAMPLE)
    assert rows[1:] == RIGHT
    assert "by the column 0 of test.csv" in text


class Latin(Prices):
    def read(self, source):
        frame = pd.read_csv(source, encoding="cp1252")
        return [(float(x), None) for x in frame.x]


def test_new_data_that_the_reader_refuses_is_named_by_its_sentence(made):
    content = "Id,x\n\u00e9,1\na,2\n".encode("cp1252")
    sentence = "test.csv:2: Byte 0xe9 is not UTF-8.*Save the file as UTF-8"
    with pytest.raises(BadInput, match=sentence):
        made(Latin, content, "Id,price\na,0\n")


def test_tables_alike_of_which_one_has_no_row_are_read_together(made, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/test.a.csv").write_text("Id,x\n")
    (tmp_path / "new/test.b.csv").write_text("Id,x\n8,9.5\n")
    _, rows = made(Numbers, TEST, SAMPLE + "8,1\n", folder=True)
    assert rows[1:] == [*RIGHT, ["8", "9.5"]]


@pytest.mark.parametrize(
    ("kind", "test", "sample", "sentence"),
    [
        pytest.param(
            Prices,
            TEST.replace("Id,", "x1,").replace("3,", "7,"),
            SAMPLE,
            "is called Id and has them",
            id="no column",
        ),
        pytest.param(
            Prices,
            "x\n" + "".join(f"{n}.5\n" for n in IDS),
            SAMPLE,
            "have no names.*ids such as 0",
            id="no ids at all",
        ),
        pytest.param(
            Prices,
            "a,b,x\n0,2,1\n1,0,3\n2,1,1\n",
            SAMPLE[: SAMPLE.index("3,")],
            "columns of .*: a, b",
            id="two columns",
        ),
        pytest.param(
            Prices,
            TEST.replace("5,5.5", "3,5.5"),
            SAMPLE,
            "more than once, such as '3'",
            id="an id twice in the data",
        ),
        pytest.param(
            Prices,
            TEST,
            SAMPLE + "3,1\n",
            r"Id of .*sample.csv has 1 ids more than once",
            id="an id twice in the sample",
        ),
        pytest.param(
            Prices,
            TEST,
            SAMPLE.replace("5,", "77,"),
            "1 of 6 ids .* 77, are no value of the column",
            id="ids of other data",
        ),
        pytest.param(
            Dropping,
            TEST,
            SAMPLE,
            r"reads 5 samples, and tables have other numbers of rows \(test.csv 6\)",
            id="rows left out",
        ),
        pytest.param(
            Sorted,
            TEST,
            SAMPLE,
            "are not the rows of test.csv, in their order",
            id="rows in another order",
        ),
    ],
)
def test_rows_that_cannot_be_told_are_refused_by_what_is_missing(
    made, tmp_path, kind, test, sample, sentence
):
    with pytest.raises(BadInput, match=sentence):
        made(kind, test, sample)
    assert not (tmp_path / "submission.csv").exists()


@pytest.mark.parametrize("ids", [("1", "2", "10"), ("1.0", "2.0", "10.0")])
def test_ids_that_a_program_wrote_as_numbers_are_compared_as_numbers(made, ids):
    sample = "Id,price\n" + "".join(f"{each},0\n" for each in ids)
    text, rows = made(Prices, "Id,x\n002,10\n001,2\n010,1\n", sample)
    answers = dict(rows[1:])
    assert [*answers] == [*ids]
    assert [*answers.values()] == ["2.0", "10.0", "1.0"]
    assert "by the column Id of" in text
    assert "compared as numbers" in text


def test_ids_that_the_column_of_their_name_lacks_are_not_sought_among_the_features(made):
    with pytest.raises(BadInput, match="are no value of the column Id of"):
        made(Prices, "Id,x\na,1\nb,2\n", "Id,price\n1,0\n2,0\n")


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_a_sample_that_begins_with_an_index_is_refused_with_what_to_delete(made, name):
    with pytest.raises(BadInput, match="begins with a column without a name.*Delete this column"):
        made(Prices, TEST, f"{name},Id,price\n0,3,0\n1,4,0\n")


def test_a_column_of_ids_may_be_named_and_a_wrong_name_is_refused(made):
    test = "a,b,x\n0,2,1.5\n1,0,3.5\n2,1,2.5\n"
    sample = "Id,price\n0,1\n1,1\n2,1\n"
    _, rows = made(Prices, test, sample, id_column="b")
    assert dict(rows[1:]) == {"0": "3.5", "1": "2.5", "2": "1.5"}
    sentence = "There is no column c in the new data; its columns: a, b, x"
    with pytest.raises(BadInput, match=sentence):
        made(Prices, test, sample, id_column="c")


def test_answers_that_no_id_takes_are_counted(made):
    text, rows = made(Prices, TEST, "Id,price\n4,1\n1,1\n")
    assert rows[1:] == [["4", "4.5"], ["1", "1.5"]]
    assert "4 of 6 answers have no id in the sample" in text


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_the_orders_each_id_gets_the_answer_of_its_own_row(made, data):
    is_number = data.draw(st.booleans())
    letters = st.text(
        st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=5
    )
    each = st.integers(0, 20).map(str) if is_number else letters
    ids = data.draw(st.lists(each, min_size=1, max_size=12, unique_by=submission.ids.normal))
    rows = data.draw(st.permutations(ids))
    price = st.integers(0, 4)
    values = data.draw(st.lists(price, min_size=len(ids), max_size=len(ids)))
    frame = pd.DataFrame({"x": values, "Id": rows})
    test = frame.to_csv(index=False)
    sample = pd.DataFrame({"Id": data.draw(st.permutations(ids)), "price": 1})
    _, written = made(Prices, test, sample.to_csv(index=False))
    prices = [f"{value:.1f}" for value in values]
    by_hand = dict(zip(rows, prices, strict=True))
    assert written[1:] == [[each, by_hand[each]] for each in sample.Id]


def test_the_score_is_that_of_the_same_answers_joined_by_pandas(made, tmp_path):
    draw = np.random.default_rng(1)
    truth = pd.DataFrame({"Id": draw.permutation(500), "price": draw.gamma(2, 100, 500)})
    noise = draw.normal(0, 9, 500).round(3)
    test = pd.DataFrame({"Id": truth.Id, "x": truth.price + noise})
    sample = truth[["Id"]].assign(price=1).sort_values("Id")
    made(Prices, test.to_csv(index=False), sample.to_csv(index=False))
    written = pd.read_csv(tmp_path / "submission.csv")
    assert written.Id.tolist() == sample.Id.tolist()
    joined = truth.merge(written, on="Id", suffixes=("", "_written")).merge(test, on="Id")
    error = np.linalg.norm(joined.price - joined.price_written)
    assert error == pytest.approx(np.linalg.norm(joined.price - joined.x), rel=1e-5)
    assert error**2 / 500 < 100


# --- columns ----------------------------------------------------------------------------------------------------------

THREE = "id,x\na,2\nb,0\nc,1\n"


@pytest.mark.parametrize(
    ("sample", "rows", "sentence"),
    [
        pytest.param(
            "id,kind\na,cat\nc,dog\n", [["a", "eel"], ["c", "dog"]], "Filled: kind.", id="names"
        ),
        pytest.param(
            "id,kind\na,?\n",
            [["a", "eel"]],
            r"\?, which kind has in the sample",
            id="a word of no class",
        ),
        pytest.param(
            "id,kind\na,0\nb,0\n",
            [["a", "2"], ["b", "0"]],
            "kind has numbers of classes: 0 cat, 1 dog, 2 eel",
            id="numbers",
        ),
        pytest.param(
            "id,kind\na,0.0\n", [["a", "2.0"]], "numbers of classes", id="numbers as floats"
        ),
        pytest.param('id,kind\na,"=1+1"\n', [["a", "eel"]], "Filled", id="text"),
    ],
)
def test_one_column_has_the_class_as_the_sample_has_it(made, sample, rows, sentence):
    text, written = made(Kinds, THREE, sample)
    assert written[1:] == rows, text
    assert re.search(sentence, text), text


SHARES = {"a": [0.0, 0.0003, 0.9997], "b": [0.9997, 0.0003, 0.0], "c": [0.0003, 0.9993, 0.0003]}


@pytest.mark.parametrize(
    ("head", "order"),
    [
        pytest.param("eel,cat,dog", (2, 0, 1), id="names in another order"),
        pytest.param("prob_cat,prob_eel,prob_dog", (0, 2, 1), id="a prefix"),
        pytest.param("cat_p,dog_p,eel_p", (0, 1, 2), id="an ending"),
        pytest.param("dog", (1,), id="some of the classes"),
    ],
)
@pytest.mark.parametrize("kind", [Kinds, Marks])
def test_each_class_has_its_probability_in_the_column_of_its_name(made, kind, head, order):
    cells = ",".join("0.5" for _ in order)
    text, rows = made(kind, THREE, f"id,{head}\nb,{cells}\na,{cells}\n")
    assert rows[0] == ["id", *head.split(",")]
    assert [row[0] for row in rows[1:]] == ["b", "a"]
    for name, *cells in rows[1:]:
        shares = [SHARES[name][place] for place in order]
        assert kind is Marks or np.allclose([*map(float, cells)], shares, atol=1e-4)
    assert "Left" not in text


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        pytest.param(
            "id,cat,Usage\na,0.5,Public\n",
            "Left as in the sample, .*: Usage. An answer has the columns",
            id="another column",
        ),
        pytest.param(
            "id,cat,p_cat,p_dog,p_eel,p_fox\na,0,0,0,0,0\n",
            "p_cat, p_dog, p_eel, p_fox",
            id="too many of a prefix",
        ),
    ],
)
def test_a_column_that_no_answer_fills_is_named_and_left(made, sample, sentence):
    text, rows = made(Kinds, THREE, sample)
    before = sample.splitlines()[1].split(",")
    assert rows[1][2:] == before[2:], text
    assert re.search(sentence, text), text


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        pytest.param(
            "id,p,q\na,0,0\n",
            "No column of .*sample.csv can be filled.*p, q",
            id="no column of an answer",
        ),
        pytest.param(
            "id,target\na,0.5\n",
            "target has fractions, as probabilities of one class",
            id="a share of nobody",
        ),
        pytest.param("id\na\n", "has no column to fill: id", id="one column"),
        pytest.param("", "has no column to fill", id="nothing"),
        pytest.param("id,kind\n", "has no rows", id="a head alone"),
        pytest.param("id,kind,kind\na,0,0\n", "2 columns are called .kind.", id="a column twice"),
        pytest.param("id,kind\na\n", ":2: 1 cell instead of 2", id="a short row"),
        pytest.param(
            'id,kind\n"a,0\n',
            ":2: A quotation mark begins a cell here that nothing shuts",
            id="an open quotation",
        ),
        pytest.param("id,kind\na\0,0\n", ":2: There is a NUL byte", id="an id with a NUL"),
    ],
)
def test_a_sample_of_which_nothing_can_be_filled_is_refused(made, sample, sentence):
    with pytest.raises(BadInput, match=sentence):
        made(Kinds, THREE, sample)


def test_numbers_of_classes_stay_as_the_sample_has_them(made, monkeypatch):
    monkeypatch.setattr(Kinds, "classes", ("1", "2", "3"))
    _, rows = made(Kinds, THREE, "id,kind\na,0\n")
    assert rows[1:] == [["a", "3"]]
    _, rows = made(Kinds, THREE, "id,kind\na,1.0\n")
    assert rows[1:] == [["a", "3.0"]]
    _, rows = made(Kinds, THREE, "id,class_3,class_1,class_2\nb,0,0,0\n")
    assert rows[1][2].startswith("0.999")
    with pytest.raises(BadInput, match="kind has words such as box, and classes are numbers"):
        made(Kinds, THREE, "id,kind\na,box\n")
    monkeypatch.setattr(Kinds, "classes", ("0", "1", "2"))
    with pytest.raises(BadInput, match="No column of"):
        made(Kinds, THREE, "id,class_1,class_2,class_3\nb,0,0,0\n")


def test_the_probability_of_the_second_of_two_classes_fills_a_column_of_fractions(
    made, monkeypatch
):
    forward = Near.forward
    monkeypatch.setattr(Near, "forward", lambda self, x: forward(self, x)[:, :2])
    monkeypatch.setattr(Kinds, "classes", ("0", "1"))
    text, rows = made(Kinds, THREE, "id,target\nb,0.5\nc,0.5\n")
    assert float(rows[1][1]) < 0.01
    assert float(rows[2][1]) > 0.99
    assert "target has the probability of 1" in text


class From(Near):
    """Logits of the classes 0, 1 and 2, likely from x on, (B, 1) -> (B, 3)."""

    def forward(self, x):
        return 8 * (torch.arange(3.0) - x) + 4


def test_labels_of_a_sample_are_joined_as_the_sample_joins_them(made, monkeypatch):
    monkeypatch.setattr(Near, "forward", From.forward)
    _, rows = made(Marks, THREE, "id,tags\nb,cat eel\na,dog\n")
    assert rows[1:] == [["b", "cat dog eel"], ["a", "eel"]]
    text, rows = made(Marks, THREE, "id,tags\nb,x\n")
    assert rows[1] == ["b", "cat; dog; eel"]
    assert "joined by '; '" in text


def test_targets_of_several_numbers_have_their_names(made, monkeypatch):
    monkeypatch.setattr(Several, "settings", SimpleNamespace(targets=("low", "mid", "high")))
    _, rows = made(Several, THREE, "id,high,low\na,0,0\n")
    assert rows[1:] == [["a", "4.0", "2.0"]]
    monkeypatch.setattr(Several, "settings", None)
    with pytest.raises(BadInput, match="prediction_1, prediction_2, prediction_3"):
        made(Several, THREE, "id,high\na,0\n")


# --- files ------------------------------------------------------------------------------------------------------------


class Answers:
    """A task of which only the answers count."""

    kind = "text"


def written(tmp_path, names, ids, encode=str.encode, sample="s.csv"):
    new = tmp_path / "new"
    for name in names:
        if "." in name or "0" in names:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).touch()
    answers = {name: {"prediction": f"answer {place}"} for place, name in enumerate(names)}
    table = pd.DataFrame({"id": ids, "label": "0"}).to_csv(index=False)
    (tmp_path / sample).write_bytes(encode(table))
    out = tmp_path / "out.csv"
    text = submission.write(Answers(), answers, new, tmp_path / sample, out)
    with out.open(encoding="utf-8", newline="") as file:
        return text, [*csv.reader(file)]


@pytest.mark.parametrize(
    ("names", "ids", "places"),
    [
        pytest.param(
            ["a.png", "sub/b.png"], ["a", "b.png", "sub/b"], [0, 1, 1], id="stem and name"
        ),
        pytest.param(['a,"1".png'], ['a,"1"'], [0], id="commas and quotes"),
        pytest.param(["=cmd|'x'!A0.png"], ["=cmd|'x'!A0"], [0], id="a formula"),
        pytest.param(["1.png", "x/1.png"], ["1.png", "x/1.png"], [0, 1], id="exact names first"),
        pytest.param(["a.png", "a.jpg"], ["a.jpg", "a.png"], [1, 0], id="two endings"),
        pytest.param(["a.b.png", "a.png"], ["a", "a.b"], [1, 0], id="a dot in the stem"),
        pytest.param(["a.nii.gz", "b.nii.gz"], ["b", "a"], [1, 0], id="packed"),
        pytest.param(["e\u0301.png"], ["\u00e9"], [0], id="letters in two parts"),
        pytest.param(["0", "1"], ["1", "0"], [1, 0], id="a file called 0"),
        pytest.param(["1", "b.png"], ["b"], [1], id="outside of the folder"),
    ],
)
def test_an_id_is_an_exact_name_of_a_file_or_else_its_stem(tmp_path, names, ids, places):
    _, rows = written(tmp_path, names, ids)
    answers = [f"answer {place}" for place in places]
    assert rows[1:] == [[*pair] for pair in zip(ids, answers, strict=True)]


@pytest.mark.parametrize(
    ("names", "ids", "sentence"),
    [
        (
            ["a.png", "a.jpg"],
            ["a"],
            "1 of 1 ids in .*such as a, are the name of no predicted file, or of two",
        ),
        (["x/a.png", "y/a.png"], ["a.png"], "or of two. A file is x/a.png"),
        (["a.png"], ["a", "b"], "1 of 2 ids in .*such as b"),
        (["a.png"], ["a", "a"], "has 1 ids more than once, such as 'a'"),
        (["a.png", "1", "2"], ["1", "2"], "2 of 2 ids"),
    ],
)
def test_an_id_that_names_no_file_or_two_is_refused(tmp_path, names, ids, sentence):
    with pytest.raises(BadInput, match=sentence):
        written(tmp_path, names, ids)


@pytest.mark.parametrize(
    ("encode", "name"),
    [
        (lambda text: text.encode("utf-16"), "s.csv"),
        (lambda text: text.encode("utf-8-sig"), "s.csv"),
        (lambda text: gzip.compress(text.encode()), "s.csv.gz"),
        (lambda text: gzip.compress(text.encode()), "s.csv"),
        (lambda text: text.replace(",", ";").encode(), "s.csv"),
        (lambda text: text.replace(",", "\t").encode(), "s.tsv"),
        (lambda text: text.replace("\n", "\r\n").encode(), "s.csv"),
    ],
    ids=[
        "utf-16",
        "utf-8 with a mark",
        "gzip",
        "gzip under another name",
        "semicolons",
        "tabs",
        "two line ends",
    ],
)
def test_a_sample_is_read_in_any_encoding(tmp_path, encode, name):
    text, _ = written(tmp_path, ["é.png"], ["é"], encode, name)
    third = (tmp_path / name).read_bytes()[2:3]
    separator = {b";": ";", b"\t": "\t"}.get(third, ",")
    lines = (tmp_path / "out.csv").read_text("utf-8").splitlines()
    assert lines == [f"id{separator}label", f"é{separator}answer 0"]
    assert text.count(f"{name}: 1 row of 2 lines") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "id,label\n\u00e9,0\n".encode("cp1252"),
            "The sample submission .*:2: Byte 0xe9 is not UTF-8",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (gzip.compress(b"id,label\na,0\n", mtime=0)[:-9], "cannot be unpacked"),
    ],
)
def test_a_sample_that_the_reader_of_data_refuses_is_refused_with_its_sentence(
    tmp_path, content, sentence
):
    with pytest.raises(BadInput, match=sentence):
        written(tmp_path, ["a.png"], ["a"], lambda text: content)


def test_a_cell_above_the_limit_of_csv_is_read(tmp_path):
    long = "x" * 200_000

    def encode(text):
        return text.replace(",0", f",{long}").encode()

    _, rows = written(tmp_path, ["a.png"], ["a"], encode)
    assert rows[1] == ["a", "answer 0"]


def test_a_pipe_is_no_sample(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    answers = {"a.png": {"prediction": 1}}
    with pytest.raises(BadInput, match="cannot be read .it is a pipe"):
        submission.write(Answers(), answers, tmp_path, tmp_path / "pipe.csv", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"prediction": np.zeros((2, 2))}, "The answer for mask is an image.*run lengths"),
        ([1], "does not answer in a row a sample"),
    ],
)
def test_an_answer_that_fills_no_cell_is_refused(tmp_path, answer, sentence):
    (tmp_path / "s.csv").write_text("id,mask\na,1 1\n")
    with pytest.raises(BadInput, match=sentence):
        submission.write(
            Answers(), {"a.png": answer}, tmp_path, tmp_path / "s.csv", tmp_path / "out.csv"
        )


def test_ids_of_a_table_that_lists_the_files_name_them(tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    (new / "test.csv").write_text("image,id\nb.png,7\na.png,8\n")
    (tmp_path / "s.csv").write_text("id,label\n8,0\n7,0\n")
    answers = {"a.png": {"prediction": "x"}, "b.png": {"prediction": "y"}}
    text = submission.write(Answers(), answers, new, tmp_path / "s.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "id,label\n8,x\n7,y\n"
    assert "by the column id of test.csv" in text
