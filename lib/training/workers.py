"""Starts the processes that load data, sends them task and data set, and ends them.

They are forked from a server without threads: a fork of this process would copy locks that its threads hold. So task
and data set are pickled, with the code that a worker cannot import; all workers map one file with the large arrays.
"""

import contextlib
import io
import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from lib import private
from lib.errors import BadInput
from lib.task import find_task

_LIBRARY = Path(__file__).resolve().parents[2]
_LARGE = 2**16  # bytes from which an array is mapped and not copied
_ALIGNMENT = 64  # bytes; large arrays begin at multiples of it in the file
# torch's message for an error of the data set itself, or of the card
_OF_DATA = re.compile("^Caught .* in (DataLoader worker process|pin memory thread)")
# bytes; a socket's path has at most 107 on Linux
_LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_BASE: Any = multiprocessing.get_context(_METHOD)
# Meanings of a lost worker's exit code. 255: its server is gone.
_LOSSES = {
    -signal.SIGKILL: "was killed, most likely because the machine's RAM was full",
    -signal.SIGBUS: "was killed because /dev/shm was full",
    -signal.SIGTERM: "was asked to end by the system",
    255: "lost the server that starts it",
}


class _Process(_BASE.Process):  # type: ignore[misc]
    """A process that does not run this one's main module again: the definitions that it needs are sent."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            return _BASE.Process._Popen(process)
        finally:
            sys.modules["__main__"] = main


class _Context(type(_BASE)):  # type: ignore[misc]
    Process = _Process


context = _Context()


def start_server() -> None:
    """Starts the server that workers are forked from, unless it runs. Returns while it still imports torch."""
    if _METHOD != "forkserver":
        return
    # with them it imports torch and NumPy
    context.set_forkserver_preload(["lib.training.data", "lib.training.workers"])
    former = dict(os.environ)
    folder = tempfile.gettempdir()
    os.environ["PYTHONPATH"] = str(_LIBRARY)
    if former.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] += f"{os.pathsep}{former['PYTHONPATH']}"
    os.environ["PYTHONSAFEPATH"] = "1"  # a user's folder lib is not taken for this one
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:  # as Python does from 3.14 on (its issue 132124)
        tempfile.tempdir = "/tmp"
    try:
        multiprocessing.util.get_temp_dir()  # its sockets stay in the folder of the first call
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = folder
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            del os.environ[name]
        os.environ.update(former)


class Sent:
    """A data set that is pickled once and unpickled in each worker; `task` is the name of its task."""

    def __init__(self, dataset: Any, task: str):
        self.task = task
        large: list[memoryview] = []
        self.pickled = _pickled(dataset, large)
        self.pieces: list[tuple[int, int]] = []  # begin and end of each large array in the file
        self.file: Any = None
        if large:
            file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the loader
            for piece in large:
                begin = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                file.write(piece)
                self.pieces.append((begin, begin + piece.nbytes))
            file.flush()
            self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        """Is called while a worker starts, which inherits the file."""
        file = reduction.DupFd(self.file.fileno()) if self.file else None
        variables = dict(os.environ)
        folder = str(Path.cwd())
        return _received, (self.task, variables, folder, self.pickled, file, self.pieces)


def _received(
    task: str,
    variables: dict[str, str],
    folder: str,
    pickled: bytes,
    file: Any,
    pieces: list[tuple[int, int]],
) -> Any:
    """Returns the data set, in a worker."""
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    with contextlib.suppress(BadInput):
        find_task(task)  # a task's own file becomes a module again
    if not file:
        return pickle.loads(pickled)
    handle = file.detach()
    whole = memoryview(mmap.mmap(handle, pieces[-1][1], access=mmap.ACCESS_COPY))
    os.close(handle)
    return pickle.loads(pickled, buffers=[whole[begin:end] for begin, end in pieces])


def end_with_parent(worker: int) -> None:
    """Ends this worker when the training process is gone, even by kill -9. Only that process handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


def share(batch: Any) -> Any:
    """Moves a batch to shared memory, or pickles it if that is full: torch's own thread would lose it."""
    try:
        for value in batch.values():
            value.share_memory_()
        return batch
    except Exception:
        return pickle.dumps(batch)


def waiting(
    batches: Any, must_stop: Callable[[], object], note: Callable[[str], None]
) -> Iterator[Any]:
    """Yields a loader's batches, with a note if /dev/shm is full. Ends if `must_stop` is true while one is late."""
    is_noted = False
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader timed out"):
                raise
            if must_stop():
                return
            continue
        if isinstance(batch, bytes):
            batch = pickle.loads(batch)
            if not is_noted:
                is_noted = True
                note(
                    "/dev/shm is full: batches come through a slower pipe. Give the container more (docker run "
                    "--shm-size=2g), or lower data.num_workers. No result changes."
                )
        yield batch


def loss_of(batches: Any, error: Exception) -> str:
    """Returns how the system ended a worker. Raises the error itself if the data set's code has raised it."""
    processes = private.processes_of(batches)
    if _OF_DATA.search(str(error)) or not processes:
        raise error
    multiprocessing.connection.wait([process.sentinel for process in processes], timeout=1.0)
    lost = [process for process in processes if process.exitcode]
    if not lost:
        raise error
    code = lost[0].exitcode
    if code in _LOSSES:
        return _LOSSES[code]
    how = f"exited with code {code}"
    if code < 0:
        how = f"is killed by signal: {signal.strsignal(-code)}"
    raise RuntimeError(f"DataLoader worker (pid {lost[0].pid}) {how}.") from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also sends mapped arrays as path and offset, and tensors as arrays."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and (mapped := _place_of(value)):
            return _mapped, mapped
        if type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad:
            with contextlib.suppress(TypeError, RuntimeError):  # bfloat16, sparse: torch's own way
                return torch.from_numpy, (value.numpy(),)
        return super().reducer_override(value)


def _pickled(value: Any, large: list[memoryview]) -> bytes:
    """Returns the pickled value; the bytes of large arrays in it go to `large` instead."""

    def put_aside(piece: pickle.PickleBuffer) -> bool:
        view = piece.raw()
        if view.nbytes >= _LARGE:
            large.append(view)
        return view.nbytes < _LARGE

    out = io.BytesIO()
    _Pickler(out, 5, put_aside).dump(value)
    return out.getvalue()


def _place_of(array: np.ndarray) -> tuple[Any, ...] | None:
    """Returns the file of a mapped array, its offset, type, shape and strides; None for one in memory."""
    whole: Any = array
    while isinstance(whole, np.ndarray):
        if isinstance(whole, np.memmap) and isinstance(whole.base, mmap.mmap):
            break
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.mode != "r" or not whole.filename:
        return None
    begin, _ = whole.__array_interface__["data"]
    address, _ = array.__array_interface__["data"]
    offset = whole.offset + address - begin
    return str(whole.filename), offset, array.dtype, array.shape, array.strides


def _mapped(
    path: str, offset: int, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    return np.ndarray(shape, dtype, np.memmap(path, np.uint8, "r"), offset, strides)


def unsendable(name: str, value: Any) -> str:
    """Returns the part of a value that cannot be pickled, as "the task.attribute: reason"; "" for none."""
    try:
        _pickled(value, [])
        return ""
    except Exception as error:  # a user's __getstate__ may raise any
        parts = {} if "." in name else getattr(value, "__dict__", {})
        inside = (unsendable(f"{name}.{key}", part) for key, part in parts.items())
        return next(filter(None, inside), f"{name}: {str(error) or type(error).__name__}")
