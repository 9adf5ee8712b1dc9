"""The data of a run: windows and splits, what is cached and resumed on, and what is refused."""

import itertools
import json
import zipfile

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from tests.conftest import SAMPLES
from tests.workloads.graphmer.conftest import generator, words_of
from trainbook import launch
from trainbook.launch import ensemble
from workloads.codegraph import trees
from workloads.graphmer.corpus import split_files


def test_every_triple_stands_in_one_window_and_every_file_in_one_split(shared):
    corpus = shared.data.corpus
    graph = shared.data.graph
    files = {triple.key: triple.file for triple in graph.triples}
    seen = set()
    of_split = [set(), set(), set()]
    for triple, window in enumerate(corpus.window_of):
        head = corpus.entities[corpus.head[window]]
        relation = corpus.relations[corpus.relation[triple]]
        key = (head, relation, corpus.entities[corpus.tail[triple]])
        seen.add(key)
        of_split[corpus.split[window]].add(files[key])
        assert corpus.files[corpus.window_file[window]] == files[key]
        if relation == "calls":
            assert corpus.word_list[corpus.name[corpus.tail[triple]]] in words_of(corpus, window)
    assert seen == files.keys()
    assert len(seen) == len(corpus.relation)
    assert all(of_split)
    assert not any(a & b for a, b in itertools.combinations(of_split, 2))
    lengths = np.concatenate([[0], np.cumsum(corpus.sizes[corpus.text])])
    assert (lengths[corpus.window_stop] - lengths[corpus.window_start]).max() < 24
    for index, name in enumerate(corpus.entities):
        file = corpus.entity_file[index]
        own = corpus.types[corpus.entity_type[index]], corpus.files[file] if file >= 0 else ""
        assert own == (graph.entities[name].type, graph.entities[name].file)


def test_a_file_stays_in_its_split_when_others_come():
    files = [f"{n}.py" for n in range(1000)]
    splits = split_files(files, 0.1, 0.2)
    some = files[::7]
    assert split_files(some, 0.1, 0.2) == {file: splits[file] for file in some}
    # where earlier runs put files: a change would mix the splits of a resumed run
    names = [f"package/file{number}.py" for number in range(12)]
    assert [*split_files(names, 0.1, 0.2).values()] == [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]
    sizes = np.bincount([*splits.values()])
    assert sizes.tolist() == pytest.approx([700, 100, 200], abs=40)


def flipped(content, place):
    """The content with one bit of a byte changed."""
    return content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :]


def test_a_damaged_cache_is_built_again_and_gives_the_same_corpus(graphmer, tmp_path):
    want = graphmer().data.corpus.arrays()
    (path,) = (tmp_path / "cache").rglob("*.npz")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    places = [members[number].header_offset + 300 for number in (3, -1)]
    for damaged in (whole[:1000], b"", *(flipped(whole, place) for place in places)):
        path.write_bytes(damaged)
        for name, array in graphmer().data.corpus.arrays().items():
            assert np.array_equal(array, want[name])


def test_a_source_file_that_cannot_be_read_is_named_and_refused_unless_allowed(
    graphmer, tmp_path, capsys
):
    task = graphmer()
    (tmp_path / "tree" / "latin.py").write_bytes(b"name = '\xe9\xff'\n")
    message = r"(?s)Unreadable source files: 1; .*bad_input_limit: 1\.\n.*latin\.py"
    with pytest.raises(BadInput, match=message):
        task.data.graph  # noqa: B018
    assert len(graphmer({"workload.bad_input_limit": 1}).data.graph.triples) > 100
    assert "Left out latin.py" in capsys.readouterr().out


@pytest.mark.skipif(not (SAMPLES / "graphmer_kg").is_dir(), reason="the sample graph is not there")
def test_the_given_sample_graph_is_read_and_trained_on(graphmer):
    options = {"data.dir": str(SAMPLES / "graphmer_kg"), "workload.chain.vocabulary": 2000}
    shares = {"workload.split.validation": 0.05, "workload.split.test": 0.1}
    task = graphmer({**options, **shares})
    assert len(task.data.corpus.relation) == 24_559
    batch = task.collate([task.parts["train"][i] for i in range(4)], generator())
    sums, _ = task.loss(task.model(), batch)
    assert all(torch.isfinite(value) for value in sums.values())


def write_graph(folder, *more):
    """Triples of 24 files, and `more` lines."""
    folder.mkdir()
    triples = []
    for n in range(24):
        place = {"language": "x", "file": f"f{n}.x", "module": f"m{n}"}
        triple = {"head": f"m{n}.f", "relation": "calls", "tail": f"b{n % 3}.g"}
        triples.append(json.dumps({**triple, "qualifiers": place}))
    names = [f"m{n}.f" for n in range(24)] + [f"b{n}.g" for n in range(3)]
    entities = [json.dumps({"id": name, "type": "Part"}) for name in names]
    (folder / "x.jsonl").write_text("\n".join([*triples, *more]))
    (folder / "x.entities.jsonl").write_text("\n".join(entities))
    (folder / "x.yaml").write_text(
        "entities: {Part: {}}\nrelations: {calls: {domain: [Part], range: [Part]}}\n"
    )
    return folder


def test_a_run_of_a_graph_made_elsewhere_is_trained_resumed_and_predicts_nothing(
    graphmer, tmp_path, cut, monkeypatch
):
    monkeypatch.setattr(launch, "draw_metrics", lambda *_: None)
    given = [str(write_graph(tmp_path / name)) for name in ("a", "b")]
    small = {
        "training.max_steps": 4,
        "training.evaluate_every_steps": 2,
        "output_dir": str(tmp_path / "runs"),
    }
    config = graphmer({"data.dir": given, **small, "data.num_workers": 0}).config
    cut(2)
    assert launch.train(config).step == 2
    (tmp_path / "a" / "x.yaml").write_text("")
    cut(None)
    result = launch.train(config)
    assert result.reason == "completed"
    assert 0 < result.metrics["mrr"] <= 1
    task, models = ensemble.load(tmp_path / "runs" / "graphmer")
    with pytest.raises(BadInput, match="has read no text"):
        task.predict(models, tmp_path / "tree", None)


def test_a_bad_line_of_a_graph_is_refused_by_its_number_unless_allowed(graphmer, tmp_path, capsys):
    given = {"data.dir": str(write_graph(tmp_path / "a", '{"head": "m1.f"}'))}
    with pytest.raises(BadInput, match=r"(?s)Bad lines: 1; .*x\.jsonl:25: it has no relation"):
        graphmer(given).data.corpus  # noqa: B018
    assert len(graphmer({**given, "workload.bad_input_limit": 1}).data.corpus.relation) == 24
    assert "x.jsonl:25: it has no relation" in capsys.readouterr().out


def test_data_that_does_not_fit_is_refused_by_name(graphmer, tmp_path):
    for what in ("relations", "types"):
        with pytest.raises(BadInput, match=rf"workload.model.{what} is 2"):
            graphmer({f"workload.model.{what}": 2}).data.corpus  # noqa: B018
    graph = write_graph(tmp_path / "a")
    with pytest.raises(BadInput, match="graphs in JSON lines beside trees of Python files"):
        graphmer({"data.dir": [str(graph), str(tmp_path / "tree")]}).data  # noqa: B018
    write_graph(tmp_path / "b")
    (tmp_path / "b" / "x.yaml").unlink()
    with pytest.raises(BadInput, match="different ontologies"):
        graphmer({"data.dir": [str(graph), str(tmp_path / "b")]}).data.corpus  # noqa: B018
    (tmp_path / "lone").mkdir()
    (tmp_path / "lone" / "one.py").write_text("def f():\n    g()\n")
    with pytest.raises(
        BadInput, match=r"No triple is left for the \w+ split: the data comes from 1 files"
    ):
        graphmer({"data.dir": str(tmp_path / "lone")}).data.corpus  # noqa: B018


@pytest.fixture
def embedded(graphmer, tmp_path, monkeypatch):
    """embedded(**overrides) -> the task on embedded data, which is a small tree."""
    graphmer()
    monkeypatch.setattr(trees, "STANDARD_LIBRARY", tmp_path / "tree")
    return lambda overrides=None: graphmer({"data.dir": "", **(overrides or {})})


def resumed(task, values):
    task.take_learned(values)
    return task


def another_python(tmp_path):
    (tmp_path / "tree" / "house1.py").write_text("def f(): return g()\n")


def test_a_run_resumes_on_its_corpus_where_the_library_is_another(embedded, tmp_path):
    values = embedded().learned()
    before = embedded().fingerprint()
    assert values["about"]["names"] == ["the standard library"]
    assert str(tmp_path) not in str(values["about"])
    assert not resumed(embedded({"workload.bad_input_limit": 9}), values).data.changed
    for change in ({"workload.chain.roots": 32}, {"workload.split.test": 0.4}):
        assert resumed(embedded(change), values).data.stored["about"] != values["about"]
    another_python(tmp_path)
    assert embedded().fingerprint() != before
    task = resumed(embedded(), values)
    text = task.describe_data()
    assert "the standard library, has changed since the run began" in text
    assert "another run.name" in text
    assert task.fingerprint() == before
    assert task.learned() == values


def test_a_run_trains_on_with_a_new_image_as_if_there_had_been_none(
    embedded, tmp_path, monkeypatch, cut, capsys
):
    monkeypatch.setattr(launch, "draw_metrics", lambda *_: None)
    small = {"training.max_steps": 4, "training.evaluate_every_steps": 2, "data.buckets": 3}

    def config(name):
        return embedded({**small, "output_dir": str(tmp_path / name), "data.num_workers": 0}).config

    def weights(name):
        folder = tmp_path / name / "graphmer" / "checkpoints" / "step-00000004"
        return [(folder / f"{part}.safetensors").read_bytes() for part in ("model", "optimizer")]

    launch.train(config("whole"))
    cut(2)
    assert launch.train(config("runs")).step == 2
    assert "The data of the run is kept in" in capsys.readouterr().out
    another_python(tmp_path)
    cut(None)
    assert launch.train(config("runs")).reason == "completed"
    assert weights("runs") == weights("whole")
