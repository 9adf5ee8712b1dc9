"""`Finish` beside transformers' own Trainer: stopped and resumed, it ends in the same weights."""

import shutil
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import BertConfig, BertForSequenceClassification, Trainer  # noqa: E402

from lib.training.summary import Summary  # noqa: E402
from trainbook.hf import Finish  # noqa: E402

STEPS = 6
CONFIG = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"input_ids": torch.tensor([index % 20, 3, 4]), "labels": index % 2}


def train(folder, finish):
    torch.manual_seed(0)
    model = BertForSequenceClassification(CONFIG)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        save_steps=2,
        save_total_limit=3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[finish])
    trainer.train(resume_from_checkpoint=finish.newest(folder))
    return {name: value.clone() for name, value in model.state_dict().items()}


def finish(stops_at=None):
    """A callback whose session ends after a step."""
    one = Finish()
    steps = iter(range(1, 100))

    def stop_reason():
        return "deadline" if next(steps) == stops_at else None

    one._session = SimpleNamespace(
        stop_reason=stop_reason, margin_seconds=0.0, remaining=lambda: 1e9
    )
    return one


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_trainer_that_is_stopped_and_resumed_ends_in_the_same_weights(tmp_path):
    whole = train(tmp_path / "whole", finish())
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "stopped", finish(stops_at=3))
    assert stop.value.code == 75
    assert Finish().newest(tmp_path / "stopped").endswith("checkpoint-3")
    assert same(train(tmp_path / "stopped", finish()), whole)


def test_a_torn_newest_checkpoint_is_passed_over(tmp_path):
    whole = train(tmp_path / "run", finish())
    newest = tmp_path / "run" / "checkpoint-6"
    (newest / "optimizer.pt").unlink()
    assert Finish().newest(tmp_path / "run").endswith("checkpoint-4")
    (newest / "model.safetensors").write_bytes(b"torn")
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    assert same(train(tmp_path / "run", finish()), whole)


def test_nothing_to_resume_from_is_none(tmp_path):
    assert Finish().newest(tmp_path / "nowhere") is None


def test_the_end_stands_in_a_summary_beside_the_checkpoints(tmp_path):
    with pytest.raises(SystemExit):
        train(tmp_path / "out", finish(stops_at=3))
    assert Summary.read(tmp_path / "out").reason == "deadline"
    train(tmp_path / "out", finish())
    summary = Summary.read(tmp_path / "out")
    assert (summary.reason, summary.step) == ("completed", STEPS)
