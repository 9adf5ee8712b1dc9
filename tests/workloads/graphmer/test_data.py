"""Where the data comes from, what is cached of it, and what is refused."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.training import workers
from tests.conftest import SAMPLES
from tests.workloads.graphmer.conftest import generator


def test_two_builds_give_the_same_corpus_and_the_cache_is_the_same(graphmer, tmp_path):
    first = graphmer().data.corpus
    again = graphmer().data.corpus  # out of the cache
    for path in (tmp_path / "cache").rglob("*.npz"):
        path.unlink()
    fresh = graphmer().data.corpus
    for name in first.__dataclass_fields__:
        for other in (again, fresh):
            assert np.array_equal(getattr(first, name), getattr(other, name)), name
    assert first.fingerprint() == fresh.fingerprint()


@pytest.mark.parametrize("damage", ["cut off", "a bit in the data", "a bit in the last array", "empty"])
def test_a_damaged_cache_is_built_again(graphmer, tmp_path, capsys, damage):
    want = graphmer().data.corpus.fingerprint()
    (path,) = (tmp_path / "cache").rglob("*.npz")
    whole = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.infolist()[-1 if "last" in damage else 3]
    if "bit" in damage:
        whole[member.header_offset + 300] ^= 8
    path.unlink()  # what is mapped from it stays as it was
    path.write_bytes(bytes(whole[: {"cut off": 1000, "empty": 0}.get(damage)]))
    assert graphmer().data.corpus.fingerprint() == want
    assert "is damaged" in capsys.readouterr().out


def test_the_corpus_is_mapped_and_workers_get_its_place_alone(graphmer):
    task = graphmer()
    train = task.datasets()["train"]
    task.evaluator.baselines  # noqa: B018  what has been computed for the evaluation is not sent
    task.take_learned(task.learned())
    arrays = {name: value for name, value in vars(task.data.corpus).items() if isinstance(value, np.ndarray)}
    for name in ("text", "parts", "relation", "words"):
        assert workers._place_of(arrays[name]), name
        assert arrays[name].flags.aligned
    large = []
    sent = workers._pickled((task, train), large)
    assert b"graph.Graph" not in sent and b"Evaluator" not in sent
    again, their_train = pickle.loads(sent)
    ours = task.collate([train[0]], generator())
    theirs = again.collate([their_train[0]], generator())
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.skipif(not (SAMPLES / "graphmer_kg").is_dir(), reason="the sample graph is not there")
def test_the_given_sample_graph_is_read_and_trained_on(graphmer):
    task = graphmer(
        {
            "data.dir": str(SAMPLES / "graphmer_kg"),
            "workload.chain.vocabulary": 2000,
            "workload.split.validation": 0.05,
            "workload.split.test": 0.1,
        }
    )
    assert len(task.data.corpus.relation) == 24_559
    batch = task.collate([task.datasets()["train"][i] for i in range(4)], generator())
    sums, _ = task.loss(task.model(), batch)
    assert all(torch.isfinite(v) for v in sums.values())


def test_a_source_file_that_cannot_be_read_is_named_and_refused_unless_allowed(graphmer, tmp_path, capsys):
    task = graphmer()
    (tmp_path / "tree" / "latin.py").write_bytes(b"name = '\xe9\xff'\n")
    with pytest.raises(BadInput, match=r"(?s)Unreadable source files: 1; .*bad_input_limit: 1\.\n.*latin\.py"):
        task.data.graph  # noqa: B018
    assert len(graphmer({"workload.bad_input_limit": 1}).data.graph.triples) > 100
    assert "Left out latin.py" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["relations", "types"])
def test_too_many_relations_or_types_for_the_model_are_said_before_training(graphmer, tmp_path, what):
    for cache in (tmp_path / "cache", tmp_path / "empty"):  # built before, and not
        with pytest.MonkeyPatch.context() as patch, pytest.raises(BadInput, match=rf"workload.model.{what} is 2"):
            patch.setenv("TRAINBOOK_CACHE", str(cache))
            graphmer({f"workload.model.{what}": 2}).data.corpus  # noqa: B018


def test_a_malformed_line_of_given_triples_is_named(graphmer, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "entities.jsonl").write_text(json.dumps({"id": "a", "type": "Module"}) + "\n")
    (folder / "triples.jsonl").write_text('{"head": "a",\n')
    with pytest.raises(BadInput, match=r"triples\.jsonl:1"):
        graphmer({"data.dir": str(folder)}).data.graph  # noqa: B018


def test_the_description_names_the_source_and_the_splits(graphmer, tmp_path):
    text = graphmer().describe_data()
    assert text.startswith(f"Data: {tmp_path / 'tree'}.") and " train, " in text and text.endswith(" test).")


@pytest.mark.parametrize("how", ["read-only system", "a file in its place", "a full disk"])
def test_a_cache_that_cannot_be_written_is_said_and_ends_nothing(graphmer, tmp_path, monkeypatch, capsys, how):
    want = graphmer().data.corpus.fingerprint()
    cache = tmp_path / "elsewhere"
    if how == "a full disk":

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("lib.machine.disk.whole", full)
    elif how == "a file in its place":
        cache.write_text("")
    monkeypatch.setenv("TRAINBOOK_CACHE", "/proc/nowhere" if how == "read-only system" else str(cache))
    capsys.readouterr()
    assert graphmer().data.corpus.fingerprint() == want
    out = capsys.readouterr().out
    assert "The graph is not kept for the next run" in out and "The corpus is not kept for the next run" in out


def test_a_single_python_file_is_no_graph_and_the_advice_is_its_folder(graphmer, tmp_path):
    file = tmp_path / "tree" / "house0.py"
    for given in (str(file), [str(tmp_path / "tree"), str(file)]):
        with pytest.raises(BadInput, match=rf"one Python file.*data.dir={tmp_path / 'tree'}\."):
            graphmer({"data.dir": given}).data  # noqa: B018
