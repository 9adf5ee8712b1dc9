"""Published weights as Hugging Face lays them out: found by name, in one file or shards, pickled ones too."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from lib.checkpoint import weights
from lib.errors import BadInput
from lib.machine import gguf, published
from tests.workloads.chat.conftest import CHATML, tokenizer_of

TENSORS = {
    "a.weight": torch.arange(6.0).view(2, 3),
    "b.weight": torch.ones(3),
    "b.bias": torch.zeros(1),
}
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
    return tensors.keys() == TENSORS.keys() and all(
        torch.equal(tensors[name], TENSORS[name]) for name in TENSORS
    )


def test_a_mounted_model_is_found_by_its_name_wherever_its_weights_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    inner = sharded(
        tmp_path / "input" / "models" / "ada" / "bert" / "pytorch" / "tiny" / "2" / "download"
    )
    for name in ("ada/bert", "bert", "ada/bert/pytorch/tiny/2", "models/ada/bert/pytorch/tiny/2"):
        assert published.find_model(name) == inner
        assert same(weights.read(published.find_model(name)).tensors["model"])
    for name in ("one", "two"):
        sharded(tmp_path / "input" / "datasets" / "ada" / "models" / name)
    with pytest.raises(BadInput, match="2 folders with weights .*one, .*two.* Name one of them"):
        published.find_model("ada/models")
    assert published.find_model("datasets/ada/models/one").name == "one"


@pytest.mark.parametrize("write", [save_file, torch.save])
@pytest.mark.parametrize("whole", [True, False], ids=["one file", "shards"])
def test_weights_are_read_from_one_file_and_from_shards(tmp_path, write, whole):
    folder = tmp_path / "m"
    is_safe = write is save_file
    stem, end = ("model", ".safetensors") if is_safe else ("pytorch_model", ".bin")
    if whole:
        folder.mkdir()
        write(TENSORS, folder / f"{stem}{end}")
    else:
        placed = {name: file.replace(".safetensors", end) for name, file in INDEX.items()}
        sharded(folder, placed, write, f"{stem}{end}.index.json")
    assert same(weights.read(folder).tensors["model"])
    if is_safe:
        assert same(weights.read(tmp_path).tensors["model"]), "the folder above it"
    else:
        with pytest.raises(BadInput, match="one with pytorch_model.bin must be named itself"):
            weights.read(tmp_path)


def elsewhere(name):
    return lambda folder: sharded(folder, {**INDEX, "a.weight": name})


def shard_gone(folder):
    (sharded(folder) / INDEX["a.weight"]).unlink()


def index_of(text):
    return lambda folder: (sharded(folder) / "model.safetensors.index.json").write_text(text)


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


UNREADABLE = {
    "above": elsewhere("../secret.safetensors"), "a pickle": elsewhere("x.pkl"), "a missing shard": shard_gone,
    "no map": index_of("[]"), "deep": index_of('{"weight_map": ' + "[" * 100_000),
    "damaged": lambda folder: (sharded(folder) / INDEX["a.weight"]).write_bytes(b"\xff" * 40),
    "a tensor twice": lambda folder: save_file(TENSORS, sharded(folder) / INDEX["a.weight"]),
    "cut": lambda folder: cut(sharded(folder) / INDEX["a.weight"]), "empty": lambda folder: (
        sharded(folder) / INDEX["a.weight"]).write_bytes(b""),
    "no such tensor": lambda folder: sharded(folder, {**INDEX, "c": INDEX["a.weight"]}),
}  # fmt: skip

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named_as_what_it_is(tmp_path, name):
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(
        BadInput, match=f"{name} cannot be read .it is a pointer of Git LFS.*git lfs pull"
    ):
        published.find_model(str(tmp_path))


def test_a_gguf_file_is_refused_with_what_to_do_where_it_cannot_be_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF, which is not one")
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    for place in (tmp_path, path):
        with pytest.raises(BadInput, match=r"model.gguf is a GGUF file.*pip install gguf"):
            published.find_model(str(place))
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: "there")
    with pytest.raises(BadInput, match=r"model.gguf cannot be unpacked \("):
        published.find_model(str(path))
    assert not [*(tmp_path / "cache").iterdir()], "nothing half is left"
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput, match=r"2 GGUF files \(model.gguf, other.gguf\). Name one"):
        published.find_model(str(tmp_path))


def test_a_gguf_file_is_unpacked_once_to_its_weights_tokenizer_and_template(
    tmp_path, monkeypatch, capsys
):
    pytest.importorskip("gguf")
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    model = write_gguf(tmp_path / "m" / "small.gguf")
    folder = published.find_model(str(tmp_path / "m"))
    assert "Unpacking" in capsys.readouterr().out
    again = AutoModelForCausalLM.from_pretrained(folder)
    weights = {name: value.bfloat16() for name, value in model.state_dict().items()}
    assert again.dtype is torch.bfloat16
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer("<|im_start|>x y")["input_ids"] == tokenizer_of()("<|im_start|>x y")["input_ids"]
    )
    assert tokenizer.chat_template == CHATML
    assert published.find_model(str(tmp_path / "m" / "small.gguf")) == folder
    assert not capsys.readouterr().out


def write_gguf(path):
    """Writes a Qwen2 of two small layers, with its tokenizer, as llama.cpp has it; returns the model."""
    import gguf

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    tokenizer = tokenizer_of()
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(tokenizer) + 1, tie_word_embeddings=True, **sizes, **heads)
    model = Qwen2ForCausalLM(config)
    path.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(512)
    writer.add_embedding_length(16)
    writer.add_block_count(2)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    words = [*tokenizer.convert_ids_to_tokens(range(len(tokenizer))), "ab"]
    special = {tokenizer.pad_token, *tokenizer.get_added_vocab()}
    writer.add_token_list(words)
    writer.add_token_types([3 if word in special else 1 for word in words])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(CHATML)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    for name, value in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            plain, _, end = name.rpartition(".")
            writer.add_tensor(f"{names.get_name(plain)}.{end}", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_hostile_weights_are_refused_by_name(tmp_path, make):
    make(tmp_path / "m")
    with pytest.raises(BadInput, match=f"{tmp_path}/m.* cannot be read"):
        weights.read(tmp_path / "m")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("content", [{"a": Evil()}, [1]], ids=["code", "a list"])
def test_a_pickle_that_holds_more_than_weights_is_refused_and_runs_nothing(
    tmp_path, monkeypatch, content
):
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match="cannot be read") as refused:
        weights.read(tmp_path)
    assert "weights_only" not in str(refused.value), "no advice to run the code"
    assert not (tmp_path / "ran").exists()
