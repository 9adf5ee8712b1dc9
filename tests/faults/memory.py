"""Runs out of memory once, at 60 sites of a run: `make faults`, or `python -m tests.faults.memory [--fast]`.

Runs of the toy task are forked. Each must end by itself in the weights of the undisturbed run ("borne"), or with a
sentence and a smaller micro-batch, from which the next start ends in them ("ended"). Figures go to
tests/bench/records/out_of_memory.json, after a minute; --fast takes the worst sites and keeps nothing.

Sums in another order round otherwise, and AdamW divides by the root of a moment: in 12 steps up to 1e-5 of a weight. A
step that is lost, doubled or done in half differs by 1e-2 and more.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import safetensors.torch
import torch
import torch._dynamo  # which an optimizer imports anyway: once, before runs are forked

from lib.report.metrics import read
from lib.task import load_config
from lib.training import optimization, step
from lib.training.summary import Summary
from tests.bench.record import RECORDS, head, write
from tests.conftest import TOY, VOLATILE_COLUMNS
from tests.faults import runs
from tests.toy import Net, Toy

RECORD = RECORDS / "out_of_memory.json"
TOLERANCE = 1e-4  # of a number, or of 0.01 where it is smaller
STEPS = 12
MICRO_BATCH = 4  # of an effective batch of 8


class Seen(torch.nn.Module):
    """A buffer that adds up its inputs: the same for any micro-batches, and wrong where a repeated step adds twice."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        if self.training:
            self.seen += x.detach().sum(0)
        return x


class Buffered(Toy):
    """The toy task with a buffer, and a figure to log."""

    def model(self):
        return Net(Seen(), *super().model().blocks)

    def loss(self, model, batch):
        sums, _ = super().loss(model, batch)
        return sums, {"mean_input": batch["x"].mean()}


class Site:
    """Call number `at` of `holder.name`, from the file `of` where given, raises instead of its work or `after` it."""

    def __init__(self, holder, name, at, of="", after=False):
        self.holder = holder
        self.name = name
        self.at = at
        self.of = of
        self.after = after
        self.mark = None
        self.calls = 0

    def is_due(self):
        self.calls += 1
        return self.calls == self.at

    def put(self, mark):
        """Replaces the function in this process; the file `mark` will say that memory ran out there."""
        self.mark = mark
        original = getattr(self.holder, self.name)

        def replaced(*arguments, **more):
            counts = not self.of or Path(sys._getframe(1).f_code.co_filename).name == self.of
            due = counts and self.is_due()
            if due and not self.after:
                raise self.error()
            result = original(*arguments, **more)
            if due:
                raise self.error()
            return result

        setattr(self.holder, self.name, replaced)

    def error(self):
        self.mark.touch()
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class HalfDone(Site):
    """AdamW changes two parameters of its first group, and then memory runs out."""

    def put(self, mark):
        self.mark = mark
        original = self.holder.step

        def replaced(optimizer, closure=None):
            if not self.is_due():
                return original(optimizer, closure)
            groups = optimizer.param_groups
            optimizer.param_groups = [{**groups[0], "params": groups[0]["params"][:2]}]
            try:
                original(optimizer, closure)
            finally:
                optimizer.param_groups = groups
            raise self.error()

        self.holder.step = replaced


class Pointing(Site):
    """Parameter number `at` that is to point at other memory does not: the middle of applying the averages."""

    def put(self, mark):
        self.mark = mark
        data = torch.Tensor.data

        def assign(parameter, value):
            if sys._getframe(1).f_code.co_name == "_put" and self.is_due():
                raise self.error()
            data.__set__(parameter, value)

        torch.nn.Parameter.data = property(data.__get__, assign)


def sites():
    """Returns the sites by name, as they lie in a step."""
    adamw = torch.optim.AdamW
    ema = optimization.Ema
    tensor = torch.Tensor
    table = [
        (
            "forward",
            (1, 2, 5, 9, 14, 23, 30, 44, 61),
            lambda n: Site(torch.nn.Linear, "forward", n),
        ),
        ("before a backward pass", (1, 2, 7, 12), lambda n: Site(tensor, "backward", n)),
        ("after a backward pass", (1, 2, 7, 12), lambda n: Site(tensor, "backward", n, after=True)),
        ("before an evaluation", (1, 2, 4), lambda n: Site(Toy, "evaluate", n)),
        ("after an evaluation", (1, 2, 4), lambda n: Site(Toy, "evaluate", n, after=True)),
        ("norm of the gradient", (1, 2, 5, 12), lambda n: Site(step, "total_norm", n)),
        ("clipping", (1, 3), lambda n: Site(torch.nn.utils, "clip_grads_with_norm_", n)),
        (
            "the optimizer's states",
            (1, 6),
            lambda n: Site(torch, "full_like", n, "optimization.py"),
        ),
        ("before optimizer.step", (1, 5, 12), lambda n: Site(adamw, "step", n)),
        ("optimizer.step half done", (1, 2, 12), lambda n: HalfDone(adamw, "step", n)),
        ("after optimizer.step", (1, 5), lambda n: Site(adamw, "step", n, after=True)),
        ("before the averages' update", (1, 5), lambda n: Site(ema, "update", n)),
        ("after the averages' update", (12,), lambda n: Site(ema, "update", n, after=True)),
        ("before applying the averages", (1, 2, 4), lambda n: Site(ema, "applied", n)),
        ("in the middle of applying the averages", (2, 6, 11), lambda n: Pointing(None, "data", n)),
        ("copies of buffers", (1, 2, 9), lambda n: Site(tensor, "clone", n, "step.py")),
        ("copies for a checkpoint", (1, 20), lambda n: Site(tensor, "copy_", n, "saver.py")),
        ("new memory for a checkpoint", (1, 8), lambda n: Site(torch, "empty", n, "saver.py")),
        (
            "looking for infinite weights",
            (1, 3),
            lambda n: Site(torch, "_foreach_norm", n, "state.py"),
        ),
        ("moving a batch", (3, 14), lambda n: Site(tensor, "to", n, "data.py")),
        ("summing over ranks", (2,), lambda n: Site(step, "over_ranks", n)),
    ]
    return {f"{name} ({n})": make(n) for name, numbers, make in table for n in numbers}


FAST = [
    "norm of the gradient (1)", "the optimizer's states (6)", "optimizer.step half done (1)",
    "after the averages' update (12)", "in the middle of applying the averages (2)",
    "in the middle of applying the averages (6)", "before a backward pass (2)", "copies for a checkpoint (20)",
]  # fmt: skip


def train(folder, site=None):
    """Trains in a forked process; returns its exit code, as the command line gives it, or 70 after a traceback."""

    def run():
        overrides = {
            "task": f"{__file__}:Buffered", "output_dir": str(folder / "runs"),
            "training.micro_batch": MICRO_BATCH, "training.ema_decay": 0.9, "training.clip_norm": 0.05,
        }  # fmt: skip
        config = load_config(folder.parent / "toy.yaml", overrides)
        if site:
            site.put(folder / "ran-out")
        return runs.train(config)

    return runs.wait(runs.forked(folder, run))


def end(folder):
    """Returns the tensors of the last checkpoint, the rows of metrics.csv and the summary's figures."""
    run = folder / "runs" / "toy"
    place = run / "checkpoints" / f"step-{STEPS:08d}"
    files = {
        path.stem: safetensors.torch.load_file(path) for path in sorted(place.glob("*.safetensors"))
    }
    tensors = {
        f"{group}/{name}": value for group, named in files.items() for name, value in named.items()
    }
    unlike = {"split", "micro_batch", *VOLATILE_COLUMNS}
    rows = {
        f"row {row['step']} {row['split']}/{name}": torch.tensor(float(value))
        for row in read(run / "metrics.csv")
        for name, value in row.items()
        if name not in unlike and value
    }
    summary = Summary.read(run)
    figures = {f"summary/{name}": torch.tensor(value) for name, value in summary.metrics.items()}
    return {**tensors, **rows, **figures}


def furthest(ours, expected):
    """Returns the largest difference of a number relative to the expected one, or to 0.01 where that is larger."""
    assert ours.keys() == expected.keys(), ours.keys() ^ expected.keys()
    return max(
        float(
            (
                (ours[name].double() - value.double()).abs() / value.double().abs().clamp(min=1e-2)
            ).max()
        )
        for name, value in expected.items()
    )


def verdict(folder, site, expected):
    """Runs out at a site and starts again until the run has ended; returns the verdict and what was seen."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    code = train(folder, site)
    starts = 1
    log = (folder / "log.txt").read_text()
    assert (folder / "ran-out").exists(), f"{site.name} was not met:\n{log}"
    summary = Summary.read(folder / "runs" / "toy")
    kept = summary.micro_batch if summary else 0
    while code == 1 and starts < 3:
        code = train(folder)
        starts = starts + 1
    events = folder / "runs" / "toy" / "events.csv"
    repeated = events.exists() and "oom_" in events.read_text()
    if "Traceback" in log or code:
        return "NOT", log[-1500:]
    far = furthest(end(folder), expected)
    if far > (TOLERANCE if repeated or starts > 1 else 0):
        return "NOT", f"differs by {far:.1e}"
    if starts > 1 and not 0 < kept < MICRO_BATCH:
        return "NOT", "no smaller size was kept"
    return ("borne" if starts == 1 else "ended"), {"furthest": far, "repeated": repeated}


def campaign(base, names):
    (base / "toy.yaml").write_text(TOY)
    os.environ["TRAINBOOK_CACHE"] = str(base / "cache")
    (base / "whole").mkdir()
    assert train(base / "whole") == 0, (base / "whole" / "log.txt").read_text()
    expected = end(base / "whole")
    counts = Counter()
    far = 0.0
    exact = 0
    bad = {}
    every = sites()
    for name in names or every:
        said, seen = verdict(base / "run", every[name], expected)
        counts[said] += 1
        if said == "NOT":
            bad[name] = seen
        else:
            far = max(far, seen["furthest"])
            exact = exact + (seen["furthest"] == 0)
    return {
        "sites": counts.total(), "borne": counts["borne"],
        "ended with a sentence, a smaller size kept": counts["ended"],
        "NOT": counts["NOT"], "same bits": exact, "furthest from the undisturbed run": float(f"{far:.1e}"),
        "tolerance": TOLERANCE, **({"bad": bad} if bad else {}),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="the worst sites, in seconds")
    fast = parser.parse_args().fast
    torch.set_num_threads(1)  # threads of a parent do not live on in forked runs
    gc.freeze()  # clearing memory would walk all that was imported, and copy it to each fork
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        figures = campaign(Path(temporary), FAST if fast else [])
    print(json.dumps(figures), flush=True)
    if not fast:
        write(
            RECORD, {**head("torch"), **figures, "seconds": round(time.perf_counter() - begin, 1)}
        )
    raise SystemExit(bool(figures["NOT"]))


if __name__ == "__main__":
    main()
