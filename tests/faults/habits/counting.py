"""What the scripts count with: each step in a file that outlives a kill, and writes that take their time."""

import os
import pickle
import time
import zipfile

_STEPS = os.open(os.environ["HABIT_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
STEPS = 40
SECONDS = 0.15


def begin(step):
    os.write(_STEPS, b"begin %d\n" % step)


def take(step):
    time.sleep(SECONDS)
    os.write(_STEPS, b"%d\n" % step)


def write(path, data, seconds=0.03):
    """Writes a file in place, in two halves: a kill between them leaves it torn."""
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(seconds)
        file.write(data[len(data) // 2 :])


def as_pickle(step):
    return pickle.dumps({"step": step, "weights": bytes(5000)})


def save_zip(path, step):
    """Writes the form that torch.save has, in place."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": step}))
        time.sleep(0.03)
        archive.writestr("archive/data/0", bytes(5000))


def load_zip(path):
    with zipfile.ZipFile(path) as archive:
        return pickle.loads(archive.read("archive/data.pkl"))["step"]
