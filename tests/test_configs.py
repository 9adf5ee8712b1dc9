"""Every configuration in the folder loads, and the sizes are those that are promised."""

import pytest
import torch
import yaml

from lib.config import to_yaml
from lib.task import load_config, load_task
from tests.conftest import ROOT
from trainbook.dependencies import project_of

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_every_configuration_loads_round_trips_and_comes_in_two_sizes(tmp_path):
    for path in CONFIGS:
        config = load_config(path)
        assert config.run.name == path.stem
        (tmp_path / "again.yaml").write_text(to_yaml(config))
        assert load_config(tmp_path / "again.yaml") == config
        if path.stem == "glacier_imagenet":
            continue  # for a GPU alone
        if path.stem.endswith("_small"):
            other = path.stem.removesuffix("_small")
        else:
            other = f"{path.stem}_small"
        assert path.with_name(f"{other}.yaml").is_file()


@pytest.mark.parametrize(
    ("name", "least", "most"), [("graphmer", 80e6, 100e6), ("glacier_pretrain", 24e6, 26e6)]
)
def test_a_model_has_the_size_that_is_promised(name, least, most):
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    with torch.device("meta"):
        parameters = sum(p.numel() for p in load_task(config).model().parameters())
    assert least < parameters < most
    # weights and two moments in fp32 of each checkpoint, and the best weights: within Kaggle's 20 GB
    assert config.checkpoint.keep_last * 12 * parameters + 4 * parameters < 20e9


def test_graphmers_packages_are_in_kaggles_image():
    packages = load_config(ROOT / "configs" / "graphmer.yaml").workload.packages
    image = yaml.safe_load((ROOT / "trainbook" / "kaggle" / "image.yaml").read_text())[
        "has"
    ].split()
    assert len(packages) > 10
    assert load_config(ROOT / "configs" / "graphmer_small.yaml").workload.packages == ()
    projects = {project_of(name).replace("_", "-") for name in image}
    assert {package.partition("==")[0] for package in packages} <= projects
