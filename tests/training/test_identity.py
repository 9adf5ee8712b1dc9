"""What decides whether a checkpoint belongs to a run."""

import pytest

from lib import launch
from lib.errors import BadInput


@pytest.mark.parametrize("key, value", [("seed", 1), ("training.effective_batch", 4), ("workload.samples", 36)])
def test_another_order_or_other_data_is_not_resumed(toy, key, value):
    launch.train(toy())
    with pytest.raises(BadInput, match=r"(?s)cannot be resumed with this configuration:\n +saved +now\n"):
        launch.train(toy({key: value, "training.max_steps": 20}))


def test_what_differs_without_harm_is_a_table_of_warnings(toy, cut, capsys):
    cut(5)
    launch.train(toy())
    cut(None)
    launch.train(toy({"optimizer.lr": 0.02, "data.num_workers": 1}))
    out = capsys.readouterr().out
    assert "resumes, but not bit for bit" in out and "optimizer.lr  0.01   0.02" in out and "num_workers" not in out
