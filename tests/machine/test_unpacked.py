"""A model of transformers in a wheel or an installed package is found by name, and nothing of either is run."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import save

from lib.errors import BadInput
from lib.machine import published, unpacked

TENSORS = {"weight": torch.arange(6.0)}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(path, names=("model.safetensors", "config.json"), **more):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("pack/__init__.py", "raise SystemExit('this was run')")
        for name in names:
            content = save(TENSORS) if name.endswith("safetensors") else json.dumps({})
            packed.writestr(f"pack/model/{name}", content)
        for name, content in more.items():
            packed.writestr(f"pack/model/{name}", content)
    return path


def test_a_wheel_is_found_by_itself_and_in_a_mounted_data_set_and_unpacked_once(
    tmp_path, monkeypatch, cache
):
    mount = tmp_path / "input" / "datasets" / "ada" / "words"
    mount.mkdir(parents=True)
    path = wheel(mount / "pack-1.0-py3-none-any.whl", **{"run.py": "1", "vocab.txt": "a"})
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    folder = published.find_model("ada/words")
    assert folder == published.find_model(str(path))
    assert folder.is_relative_to(cache)
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    assert torch.equal(published.read(folder)["weight"], TENSORS["weight"])
    before = (folder / "model.safetensors").stat().st_mtime_ns
    unpacked._unpacked.cache_clear()
    assert published.find_model("words") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    (folder / "vocab.txt").unlink()
    unpacked._unpacked.cache_clear()
    assert (published.find_model("words") / "vocab.txt").is_file()


def test_an_installed_package_is_found_by_its_name_behind_all_else(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "pack" / "model").mkdir(parents=True)
    (site / "pack" / "model" / "config.json").write_text("{}")
    (site / "pack" / "model" / "model.safetensors").write_bytes(save(TENSORS))
    about = site / "some_words-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-words\nVersion: 1.0\n")
    (about / "RECORD").write_text("pack/model/config.json,,\npack/model/model.safetensors,,\n")
    monkeypatch.syspath_prepend(str(site))
    assert published.find_model("some-words") == site / "pack" / "model"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some-words").mkdir()
    (tmp_path / "some-words" / "model.safetensors").write_bytes(save(TENSORS))
    assert published.find_model("some-words").name == "some-words"
    with pytest.raises(BadInput, match="There is no input no-such-words"):
        published.find_model("no-such-words")


def test_a_wheel_without_a_model_and_a_damaged_one_are_refused(tmp_path):
    path = wheel(tmp_path / "none-1.0-py3-none-any.whl", names=("config.json",))
    with pytest.raises(BadInput, match="has no model.safetensors beside a config.json"):
        published.find_model(str(path))
    whole = wheel(tmp_path / "cut-1.0-py3-none-any.whl").read_bytes()
    (tmp_path / "cut-1.0-py3-none-any.whl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="cannot be read .* Download it again"):
        published.find_model(str(tmp_path / "cut-1.0-py3-none-any.whl"))
    changed = whole.replace(save(TENSORS)[-8:], b"\0" * 8)
    (tmp_path / "changed-1.0-py3-none-any.whl").write_bytes(changed)
    with pytest.raises(BadInput, match="Bad CRC-32"):
        published.find_model(str(tmp_path / "changed-1.0-py3-none-any.whl"))


def test_facts_on_weights_are_bytes_hash_and_the_licence_of_their_card(tmp_path):
    path = wheel(
        tmp_path / "pack-1.0-py3-none-any.whl",
        **{"README.md": "---\ntags: x\nlicense: apache-2.0\n---\n# A model\n"},
    )
    folder = published.find_model(str(path))
    facts = published.facts_on(folder)
    size = (folder / "model.safetensors").stat().st_size
    assert facts.startswith(f"{size:,} bytes, sha256 ")
    assert facts.endswith("licence as written there: apache-2.0")
    (folder / "README.md").unlink()
    assert published.facts_on(folder).endswith("not stated")
