"""metrics.csv and its picture."""

from lib.report.metrics import EventLog, MetricsLog, read, series


def test_a_new_column_widens_the_table_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append({"step": 5, "split": "train", "loss": 0.5, "lr": 0.1})
        log.append({"step": 5, "split": "validation", "loss": 0.25, "mrr": 1 / 3})
        log.append({"step": 10, "split": "train", "loss": 0.125, "lr": 0.2})
    rows = read(path)
    assert [(r["step"], r["split"], r["loss"], r["mrr"], r["lr"]) for r in rows] == [
        ("5", "train", "0.5", "", "0.1"),
        ("5", "validation", "0.25", repr(1 / 3), ""),
        ("10", "train", "0.125", "", "0.2"),
    ]
    assert series(rows, "train", "loss") == ([5, 10], [0.5, 0.125])


def test_reopening_drops_later_rows_and_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        for step in (1, 2, 3):
            log.append({"step": step, "split": "train", "loss": 1.0})
    with path.open("a") as file:
        file.write("4,tr")  # a kill in the middle of a line
    with MetricsLog(path, 2) as log:
        log.append({"step": 3, "split": "train", "loss": 9.0})
    assert [(r["step"], r["loss"]) for r in read(path)] == [("1", "1.0"), ("2", "1.0"), ("3", "9.0")]


class Full:
    """A file on a disk with room for `left` more bytes."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def write(self, data):
        if not self.left:
            raise OSError(28, "No space left on device")
        taken = self.file.write(data[: self.left])
        self.left -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_rows_wait_while_the_disk_is_full_and_none_is_torn_or_lost(tmp_path, capsys):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append({"step": 1, "split": "train", "loss": 1.0})
        log._file = Full(log._file, left=4)
        log.append({"step": 2, "split": "train", "loss": 2.0})
        log.append({"step": 3, "split": "train", "loss": 3.0})
        assert [row["step"] for row in read(path)] == ["1"]
        log._file = log._file.file
        log.append({"step": 4, "split": "validation", "loss": 4.0, "mrr": 0.5})
    assert [(r["step"], r["loss"], r["mrr"]) for r in read(path)] == [
        ("1", "1.0", ""), ("2", "2.0", ""), ("3", "3.0", ""), ("4", "4.0", "0.5"),
    ]  # fmt: skip
    assert capsys.readouterr().out.count("its rows wait. Training goes on.") == 1


def test_events_of_several_sessions_stand_under_one_header_and_a_full_disk_only_warns(tmp_path, monkeypatch, capsys):
    for step in (3, 5):
        EventLog(tmp_path / "events.csv").record(step, "oom_training", 8, 4, "Half, from now on.")
    lines = (tmp_path / "events.csv").read_text().splitlines()
    assert lines == [
        "step,kind,before,after,text",
        '3,oom_training,8,4,"Half, from now on."',
        '5,oom_training,8,4,"Half, from now on."',
    ]
    EventLog(tmp_path / "nowhere" / "events.csv").record(1, "oom_training", 2, 1, "Text.")
    assert "could not be written" in capsys.readouterr().out
