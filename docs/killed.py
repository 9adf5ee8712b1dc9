"""Trains the image example without a stop and again with two kills, and draws both: docs/pictures/killed.svg.

python -m docs.killed      takes a minute; fails where the two runs do not end in the same bytes
"""

import csv
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "killed.svg"
KILLS = (27, 55)  # steps; checkpoints are taken every ten
SETTINGS = {
    "training.epochs": 20,
    "training.log_every_steps": 1,
    "checkpoint.every_steps": 10,
    "optimizer.lr": 1e-3,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73")
WIDTH = 860
HEIGHT = 330
LEFT = 60
TOP = 60

Curve = list[tuple[int, float]]


def main() -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        subprocess.run(
            command("new", "my", "--like", "images"), cwd=folder, env=environment(), check=True
        )
        whole = session(folder, "whole")
        sessions = [session(folder, "killed", kill) for kill in (*KILLS, None)]
        hashes = {digest(folder / "runs" / name) for name in ("whole", "killed")}
    if len(hashes) > 1:
        raise RuntimeError("The killed run ended in other weights than the one without a stop.")
    PICTURE.write_text(picture(whole, sessions, hashes.pop()), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size:,} bytes)")


def session(folder: Path, name: str, kill: int | None = None) -> Curve:
    """Trains a run, or resumes it, and kills it by SIGKILL after a step; returns what this session has logged."""
    table = folder / "runs" / name / "metrics.csv"
    options = [
        part
        for key, value in {**SETTINGS, "run.name": name}.items()
        for part in ("--set", f"{key}={value}")
    ]
    process = subprocess.Popen(
        command("train", "my.yaml", *options), cwd=folder, env=environment(), stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    before = max(
        (int(path.name[-8:]) for path in (table.parent / "checkpoints").glob("step-*")), default=0
    )
    while process.poll() is None:
        if kill and any(step >= kill for step, _ in curve(table)):
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.005)
    if process.wait() != (-signal.SIGKILL if kill else 0):
        raise RuntimeError(f"The run ended with exit code {process.returncode}.")
    return [(step, loss) for step, loss in curve(table) if step > before]


def curve(table: Path) -> Curve:
    """Returns step and loss of each whole training row of metrics.csv."""
    if table.is_file():
        rows = list(csv.DictReader(table.read_text("utf-8").splitlines(True)))
    else:
        rows = []
    return [
        (int(row["step"]), float(row["loss"]))
        for row in rows
        if row["split"] == "train" and row["epoch"]
    ]


def digest(run: Path) -> str:
    """Returns the hash of the newest checkpoint's weights and optimizer."""
    newest = max((run / "checkpoints").glob("step-*"))
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(newest.glob("*.safetensors")))
    ).hexdigest()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trainbook", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def picture(whole: Curve, sessions: list[Curve], sha256: str) -> str:
    """Returns the run without a stop as a wide grey line, and each session of the killed one as a thin line on it."""
    last = whole[-1][0]
    highest = 1.05 * max(loss for _, loss in whole)

    def place(step: int, loss: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 20) * step / last, TOP + (HEIGHT - TOP - 50) * (
            1 - loss / highest
        )

    def line(points: Curve, colour: str, width: float) -> str:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'

    bottom = HEIGHT - 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        'font-family="sans-serif" font-size="13" role="img" aria-label="Loss of a run killed twice, on that of one '
        'without a stop">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{LEFT}" y="14" width="26" height="9" fill="#cbd5e1"/>', text(LEFT + 33, 23, "without a stop"),
    ]  # fmt: skip
    for number, (points, colour) in enumerate(zip(sessions, COLOURS, strict=True)):
        x = LEFT + 160 + 205 * number
        lines.append(f'<path d="M{x},19 h26" stroke="{colour}" stroke-width="2.5"/>')
        lines.append(
            text(x + 33, 23, f"session {number + 1}: steps {points[0][0]} to {points[-1][0]}")
        )
    for loss in (0.0, 0.5, 1.0):
        y = place(0, loss)[1]
        lines += [
            f'<path d="M{LEFT},{y:.0f} H{WIDTH - 20}" stroke="#e2e8f0"/>',
            text(LEFT - 30, y + 4, f"{loss}"),
        ]
    for points in sessions[:-1]:
        x = place(*points[-1])[0]
        lines.append(
            f'<path d="M{x:.0f},{TOP - 8} V{bottom}" stroke="#334155" stroke-dasharray="4 4"/>'
        )
        lines.append(text(x, TOP - 12, f"killed at step {points[-1][0]}", 'text-anchor="middle"'))
    lines += [line(whole, "#cbd5e1", 9), *map(line, sessions, COLOURS, [1.8] * 3)]
    ticks = range(0, last + 1, 20)
    lines += [
        text(place(step, 0)[0], bottom + 18, f"{step}", 'text-anchor="middle"') for step in ticks
    ]
    below = f"loss over steps; both runs end in the same bytes, sha256 {sha256[:16]}..."
    lines.append(text(LEFT, HEIGHT - 10, below))
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    main()
