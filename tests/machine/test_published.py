"""Published weights as Hugging Face lays them out: found by name, in one file or shards; pickled ones made safe."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib.checkpoint import weights
from lib.errors import BadInput
from lib.machine import platform, published

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(3), "b.bias": torch.zeros(1)}
INDEX = {"a.weight": "model-00001-of-00002.safetensors"} | dict.fromkeys(
    ("b.weight", "b.bias"), "model-00002-of-00002.safetensors"
)


def sharded(folder, placed=INDEX, write=save_file, index="model.safetensors.index.json"):
    folder.mkdir(parents=True, exist_ok=True)
    for file in set(INDEX.values()):
        name = file if write is save_file else file.replace(".safetensors", ".bin")
        write({n: TENSORS[n] for n, where in INDEX.items() if where == file}, folder / name)
    (folder / index).write_text(json.dumps({"weight_map": placed}))
    return folder


def same(tensors):
    return tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    (tmp_path / "kaggle" / "input").mkdir(parents=True)
    return tmp_path / "kaggle" / "input"


@pytest.mark.parametrize("name", ["ada/bert", "bert", "ada/bert/pytorch/tiny/2", "models/ada/bert/pytorch/tiny/2"])
def test_a_mounted_model_is_found_by_its_name_wherever_its_weights_lie(kaggle, name):
    inner = sharded(kaggle / "models" / "ada" / "bert" / "pytorch" / "tiny" / "2" / "download")
    assert published.find_model(name) == inner
    assert same(weights.read(published.find_model(name)))


def test_two_folders_with_weights_in_one_input_must_be_named(kaggle):
    for name in ("one", "two"):
        sharded(kaggle / "datasets" / "ada" / "models" / name)
    with pytest.raises(BadInput, match="2 folders with weights .*one, .*two.* Name one of them"):
        published.find_model("ada/models")
    assert published.find_model("datasets/ada/models/one").name == "one"


@pytest.mark.parametrize("whole", [True, False], ids=["one file", "shards"])
def test_weights_are_read_from_one_file_and_from_shards(tmp_path, whole):
    folder = tmp_path / "m"
    if whole:
        folder.mkdir()
        save_file(TENSORS, folder / "model.safetensors")
    else:
        sharded(folder)
    assert same(weights.read(folder)) and same(weights.read(tmp_path)), "or the folder above it"


@pytest.mark.parametrize("whole", [True, False], ids=["one file", "shards"])
def test_pickled_weights_of_a_named_folder_become_safetensors(tmp_path, monkeypatch, whole):
    folder = tmp_path / "m"
    if whole:
        folder.mkdir()
        torch.save(TENSORS, folder / "pytorch_model.bin")
    else:
        placed = {name: file.replace(".safetensors", ".bin") for name, file in INDEX.items()}
        sharded(folder, placed, torch.save, "pytorch_model.bin.index.json")
    (folder / "config.json").write_text('{"a": 1}')
    assert same(weights.read(folder))
    made = published.as_safetensors(folder)
    assert platform.detect().scratch_dir in made.parents
    assert same(load_file(made / "model.safetensors")) and (made / "config.json").read_text() == '{"a": 1}'
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled twice"))
    assert same(weights.read(folder))


@pytest.mark.parametrize("damage", ["flipped", "zeros", "truncated", "a folder", "no record"])
def test_a_damaged_copy_of_pickled_weights_is_made_again(tmp_path, damage):
    torch.save({"weight": torch.arange(4096.0)}, tmp_path / "pytorch_model.bin")
    before = published.read(tmp_path)["weight"].clone()  # it is mapped into memory
    copy = published.as_safetensors(tmp_path) / published.WHOLE
    raw = copy.read_bytes()
    if damage == "a folder":
        copy.unlink()
        copy.mkdir()
    elif damage == "no record":  # as an earlier version left it
        (copy.parent / "cache.json").unlink()
    else:
        flipped, zeros = raw[:3000] + bytes([raw[3000] ^ 64]) + raw[3001:], raw[:4096].ljust(len(raw), b"\0")
        copy.write_bytes({"flipped": flipped, "zeros": zeros}.get(damage, raw[:5000]))
    for _ in range(2):
        assert torch.equal(published.read(tmp_path)["weight"], before)
    assert copy.read_bytes() == raw


def test_a_pickle_is_not_found_by_a_search(tmp_path):
    (tmp_path / "above" / "m").mkdir(parents=True)
    torch.save(TENSORS, tmp_path / "above" / "m" / "pytorch_model.bin")
    with pytest.raises(BadInput, match="one with pytorch_model.bin must be named itself"):
        published.find_model(str(tmp_path / "above"))
    with pytest.raises(BadInput, match="There are no weights in"):
        weights.read(tmp_path / "above")


def elsewhere(name):
    return lambda folder: sharded(folder, {**INDEX, "a.weight": name})


def shard_gone(folder):
    (sharded(folder) / INDEX["a.weight"]).unlink()


def in_two_shards(folder):
    save_file(TENSORS, sharded(folder) / INDEX["a.weight"])


def index_of(text):
    def make(folder):
        (sharded(folder) / "model.safetensors.index.json").write_text(text)

    return make


def pipe(folder):
    shard_gone(folder)
    os.mkfifo(folder / INDEX["a.weight"])


def damaged(folder):
    (sharded(folder) / INDEX["a.weight"]).write_bytes(b"\xff" * 40)


HOSTILE = {
    "above": elsewhere("../secret.safetensors"), "an absolute path": elsewhere("/etc/passwd"), "a number": elsewhere(7),
    "an absolute path of weights": elsewhere("/tmp/x.safetensors"), "a pickle": elsewhere("x.pkl"),
    "a missing shard": shard_gone, "a pipe": pipe, "no map": index_of("[]"), "no JSON": index_of("{"),
    "an empty map": index_of('{"weight_map": {}}'), "deep": index_of('{"weight_map": ' + "[" * 100_000),
}  # fmt: skip
UNREADABLE = {
    "the other shard": elsewhere("model-00003-of-00002.safetensors"),
    "damaged": damaged, "a tensor twice": in_two_shards,
    "no such tensor": lambda folder: sharded(folder, {**INDEX, "c": INDEX["a.weight"]}),
    "not in the index": lambda folder: sharded(folder, {n: INDEX[n] for n in ("a.weight", "b.bias")}),
}  # fmt: skip


@pytest.mark.parametrize("make", [*HOSTILE.values(), *UNREADABLE.values()], ids=[*HOSTILE, *UNREADABLE])
def test_hostile_weights_are_refused_by_name(tmp_path, make):
    make(tmp_path / "m")
    for read in (published.as_safetensors, weights.read) if make in HOSTILE.values() else (weights.read,):
        with pytest.raises(BadInput, match=f"{tmp_path}/m.* cannot be read"):
            read(tmp_path / "m")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("content", [{"a": Evil()}, [1], {"a": 1}], ids=["code", "a list", "no tensors"])
def test_a_pickle_that_holds_more_than_weights_is_refused_and_runs_nothing(tmp_path, content):
    (tmp_path / "m").mkdir()
    torch.save(content, tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(BadInput, match="cannot be read"):
        weights.read(tmp_path / "m")
    assert not (tmp_path / "ran").exists()
