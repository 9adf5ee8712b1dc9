"""Every configuration in the folder loads, and the sizes are those that are promised."""

import pytest

from lib import task as tasks
from lib.config import dump
from tests.conftest import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_configuration_loads_and_round_trips(path, tmp_path):
    config = tasks.load_config(path)
    assert config.run.name == path.stem
    (tmp_path / "again.yaml").write_text(dump(config))
    assert tasks.load_config(tmp_path / "again.yaml") == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_workload_comes_in_two_sizes(path):
    other = path.stem.removesuffix("_small") if path.stem.endswith("_small") else f"{path.stem}_small"
    assert path.with_name(f"{other}.yaml").is_file()


def test_graphmer_has_the_size_for_kaggle():
    config = tasks.load_config(ROOT / "configs" / "graphmer.yaml")
    chain, model = config.workload.chain, config.workload.model
    assert (model.layers, model.hidden, chain.roots * (1 + chain.leaves)) == (12, 768, 768)
    training = config.training
    assert (training.effective_batch, training.max_steps, training.smoke_steps) == (64, 10_000, 100)
    assert config.checkpoint.keep_last == 5
    parameters = sum(p.numel() for p in tasks.load(config).model().parameters())
    assert 80e6 < parameters < 100e6
    # weights and two moments in fp32, five times, and the best weights: within Kaggle's 20 GB
    assert 5 * 12 * parameters + 4 * parameters < 20e9
