"""A whole checkpoint opens; a cut one does not, wherever it was cut."""

import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from trainbook.run.opening import is_checkpoint_file, opens

VALUES = {"a": np.arange(2000, dtype=np.float32), "b": np.ones((30, 30), dtype=np.float16)}


def _zipped(path):
    torch.save({name: torch.from_numpy(value) for name, value in VALUES.items()}, path)


def _legacy(path):
    torch.save({"a": torch.zeros(10)}, path, _use_new_zipfile_serialization=False)


def _pickled(path):
    path.write_bytes(pickle.dumps({"step": 3, "values": list(range(500))}))


def _hdf5(path):
    """A superblock of version 0 with the address of the file's end, and bytes up to there."""
    head = b"\x89HDF\r\n\x1a\n" + bytes(32) + struct.pack("<Q", 4000)
    path.write_bytes(head + bytes(4000 - len(head)))


WRITERS = {
    "model.pt": _zipped,
    "old.pt": _legacy,
    "state.pkl": _pickled,
    "model.safetensors": lambda path: save_file(VALUES, path),
    "model.h5": _hdf5,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_whole_file_opens_and_is_known_as_a_checkpoint(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    assert is_checkpoint_file(path)
    assert opens(path)
    assert opens(path, whole=True)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "old.pt"])
def test_a_file_that_was_cut_anywhere_does_not_open(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * (len(content) - 1))])
    assert is_checkpoint_file(path)
    assert not opens(path)


def test_a_flipped_bit_in_a_zip_is_found_by_reading_all_of_it(tmp_path):
    path = tmp_path / "model.pt"
    _zipped(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert not opens(path, whole=True)


def test_nothing_is_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    assert opens(path)


@pytest.mark.parametrize("name", ["train.log", "config.json", "tokenizer.txt"])
def test_other_files_are_no_checkpoints(tmp_path, name):
    path = tmp_path / name
    path.write_text("{}")
    assert not is_checkpoint_file(path)
    assert opens(path)


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ('{"step": 5}\n', True),
        ('{"step": 1}\n{"step": 2}\n', True),
        ('{"step": 5} // by hand', True),
        ("", False),
        ('{"step": 5', False),
        ('{"step": 5, "be', False),
        ('{"step":', False),
        ("[1, 2", False),
    ],
)
def test_json_that_breaks_off_is_torn_and_odd_json_is_not(tmp_path, text, is_whole):
    (tmp_path / "state.json").write_text(text)
    assert opens(tmp_path / "state.json") == is_whole
