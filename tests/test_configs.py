"""Every configuration in the folder loads, and the sizes are those that are promised."""

import pytest

from lib.config import to_yaml
from lib.dependencies import project_of
from lib.task import find_task, load_config, load_task
from tests.conftest import ROOT
from trainbook.kaggle.image import PACKAGES
from workloads.codegraph import trees

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_configuration_loads_and_round_trips(path, tmp_path):
    config = load_config(path)
    assert config.run.name == path.stem
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_workload_comes_in_two_sizes(path):
    other = path.stem.removesuffix("_small") if path.stem.endswith("_small") else f"{path.stem}_small"
    assert path.with_name(f"{other}.yaml").is_file()


def test_graphmer_has_the_size_for_kaggle():
    config = load_config(ROOT / "configs" / "graphmer.yaml")
    chain, model = config.workload.chain, config.workload.model
    assert (model.layers, model.hidden, chain.positions) == (12, 768, 104)
    training = config.training
    assert (training.effective_batch, training.max_steps, training.smoke_steps) == (64, 10_000, 100)
    assert config.checkpoint.keep_last == 5
    parameters = sum(p.numel() for p in load_task(config).model().parameters())
    assert 80e6 < parameters < 100e6
    # weights and two moments in fp32, five times, and the best weights: within Kaggle's 20 GB
    assert 5 * 12 * parameters + 4 * parameters < 20e9


def test_graphmers_packages_are_in_kaggles_image_with_these_versions():
    packages = load_config(ROOT / "configs" / "graphmer.yaml").workload.packages
    imports = {project_of(name).replace("_", "-"): name for name in PACKAGES}
    assert len(packages) > 10 and load_config(ROOT / "configs" / "graphmer_small.yaml").workload.packages == ()
    for package in packages:
        name, wanted = package.split("==")
        assert trees._is_version(PACKAGES[imports[name]].version, wanted), package


@pytest.mark.parametrize("size", ["", "_small"])
def test_glaciers_runs_hand_their_weights_on(size):
    """Fine-tuning and ensemble share data, split and model; they start from the pretraining's bands and classes."""
    pretrain, finetune, ensemble = (
        load_config(ROOT / "configs" / f"glacier_{name}{size}.yaml")
        for name in ("pretrain", "finetune", "ensemble")
    )
    for key in ("source", "tiles", "split", "model", "generator", "loss", "sampling", "initial"):
        assert getattr(finetune.workload, key) == getattr(ensemble.workload, key)
    for config in (finetune, ensemble):
        assert config.workload.initial.bands == pretrain.workload.source.bands
        assert config.workload.initial.classes == pretrain.workload.source.classes
        assert config.workload.model == pretrain.workload.model
        assert config.queue.start_from == pretrain.run.name and config.queue.before == (f"{pretrain.run.name}.yaml",)
    assert (finetune.queue.folds, finetune.workload.split.folds, ensemble.queue.seeds) == (5, 5, (42, 123, 456))


def test_glacier_has_the_size_and_the_schedule_for_kaggle():
    pretrain = load_config(ROOT / "configs" / "glacier_pretrain.yaml")
    training, scheduler = pretrain.training, pretrain.scheduler
    assert (training.epochs, training.effective_batch, pretrain.optimizer.lr) == (60, 48, 5e-4)
    assert (scheduler.name, scheduler.factor, scheduler.patience, scheduler.min_lr) == ("plateau", 0.5, 5, 1e-6)
    assert pretrain.checkpoint.every_epochs == 10 and pretrain.workload.split.validation == 0.15
    assert (pretrain.workload.loss.focal, pretrain.workload.loss.dice) == (0.6, 0.4)
    finetune = load_config(ROOT / "configs" / "glacier_finetune.yaml")
    training, scheduler, loss = finetune.training, finetune.scheduler, finetune.workload.loss
    assert (training.epochs, training.effective_batch, finetune.optimizer.lr) == (150, 64, 1e-4)
    assert (scheduler.factor, scheduler.patience, scheduler.min_lr) == (0.5, 8, 1e-7)
    assert (loss.focal, loss.dice, loss.mcc, loss.boundary, loss.ramp_epochs) == (0.25, 0.25, 0.35, 0.15, 30)
    assert finetune.workload.sampling.target_shares == (0.10, 0.35, 0.40, 0.15)
    assert finetune.checkpoint.every_epochs == 25
    parameters = sum(p.numel() for p in find_task("glacier")(pretrain).model().parameters())
    assert 24e6 < parameters < 26e6


def test_legal_has_the_size_and_the_schedule_for_kaggle():
    config = load_config(ROOT / "configs" / "legal.yaml")
    training, workload = config.training, config.workload
    assert (training.epochs, training.effective_batch, training.micro_batch_slots) == (5, 16, 2)
    assert (config.optimizer.lr, config.scheduler.name, workload.context.length) == (2e-5, "linear", 256)
    assert (config.checkpoint.keep_last, config.data.buckets) == (2, 50)
    assert workload.encoder.weights == "law-ai/InLegalBERT" and workload.encoder.planned_as == "base"
    small = load_config(ROOT / "configs" / "legal_small.yaml")
    encoder = small.workload.encoder
    assert (small.training.epochs, small.optimizer.lr) == (2, 3e-4)
    assert (encoder.freeze_words, encoder.freeze_layers, encoder.attention_dropout) == (True, 2, "auto")


def test_vqa_has_the_size_and_the_stages_for_kaggle():
    config = load_config(ROOT / "configs" / "vqa.yaml")
    training, workload = config.training, config.workload
    assert (training.epochs, training.effective_batch, training.micro_batch_slots) == (100, 8, 2)
    assert (training.gradient_checkpointing, config.checkpoint.every_epochs) == (12, 10)
    assert config.data.evaluation_batch == 2
    assert (workload.decoder.length, workload.writing.beams, workload.pictures.side) == (160, 4, 384)
    begins = {name: stage.from_epochs for name, stage in workload.stages.items()}
    assert {"ANSWER_FOCUS": 0, "FORMAT_LEARNING": 15}.items() <= begins.items() and begins["REASONING"] == 30
    weights = [getattr(workload, part).weights for part in ("image", "text", "decoder")]
    assert weights == ["Salesforce/blip-vqa-base", "vinai/phobert-base", "VietAI/vit5-base"]
    small = load_config(ROOT / "configs" / "vqa_small.yaml")
    assert (small.training.effective_batch, small.optimizer.lr, small.workload.together) == (128, 1e-3, 4)
    parameters = sum(p.numel() for p in find_task("vqa")(small).model().parameters())
    assert 0.6e6 < parameters < 0.75e6
