"""Groups of parameters: rates, weight decay and freezing by step, the same after a kill; mistakes are sentences."""

import itertools

import pytest
import torch
from torch import nn

from lib.checkpoint import contents
from lib.errors import BadInput
from lib.planner import find_card
from lib.planner.trace import predict_task
from lib.task import Task, load_task
from lib.training import optimization, step
from lib.training.groups import groups_of
from lib.training.state import new_state
from tests.training.test_loop import StopAfter, fit, newest, same_tensors, stable

HEAD = {"names": "blocks.3.*", "lr": 10.0, "weight_decay": 0.0}
BODY = {"names": ["blocks.0.*"], "from_step": 4, "until_step": 9, "lr": 0.5}


@pytest.fixture
def grouped(monkeypatch):
    """grouped(entry, ...): every task has these groups."""

    return lambda *entries: monkeypatch.setattr(Task, "parameter_groups", lambda self, model: entries)


def column(folder, name, split="train"):
    return [float(row[name]) for row in stable(folder / "metrics.csv") if row["split"] == split]


def trained(config, folder, seen):
    """Trains, and notes weights and optimizer after each step."""
    step = optimization.set_learning_rate

    def watched(optimizer, value):
        seen.append(
            {
                i: [p.detach().clone(), *(v.clone() for v in optimizer.state.get(p, {}).values())]
                for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])
            }
        )
        step(optimizer, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimization, "set_learning_rate", watched)
        return fit(config, folder)


def test_a_factor_and_a_weight_decay_of_its_own_give_what_torch_gives_with_them(toy, grouped):
    """The first match counts, and the rest is as configured: matrices decayed, vectors not."""
    grouped({"names": "*.bias", "lr": 3.0}, HEAD)
    config = toy({"optimizer.weight_decay": 0.5})
    state = new_state(load_task(config), config)
    optimization.set_learning_rate(state.optimizer, 0.01)
    expected = {}
    for name, parameter in state.model.named_parameters():
        parameter.grad = torch.randn_like(parameter)
        twin = nn.Parameter(parameter.detach().clone())
        twin.grad = parameter.grad.clone()
        lr, decay = (3.0, 0.0) if name.endswith("bias") else (10.0, 0.0) if name.startswith("blocks.3") else (1.0, 0.5)
        torch.optim.AdamW([twin], lr=0.01 * lr, weight_decay=decay).step()
        expected[name] = twin
    state.optimizer.step()
    assert all(torch.equal(value, expected[name]) for name, value in state.model.named_parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_frozen_group_keeps_weights_and_moments_and_its_rate_is_0(toy, tmp_path, grouped, optimizer):
    grouped(BODY, HEAD)
    seen = []
    more = {"optimizer.name": optimizer, "optimizer.weight_decay": 0.5, "training.log_every_steps": 1}
    outcome = trained(toy(more), tmp_path, seen)
    base = column(tmp_path, "lr")
    assert len(base) == 12
    assert column(tmp_path, "lr_blocks.3") == pytest.approx([10 * lr for lr in base])
    assert column(tmp_path, "lr_blocks.0") == pytest.approx(
        [0.5 * lr if 4 <= step < 9 else 0 for step, lr in enumerate(base)]
    )
    changes = [
        not all(len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in ((one[i], two[i]) for i in (0, 1)))
        for one, two in itertools.pairwise(seen)
    ]
    assert changes == [4 <= step < 9 for step in range(11)]
    assert all(len(seen[4][i]) == 1 for i in (0, 1))  # it has no moments before its first step
    assert all(not torch.equal(one[2][0], two[2][0]) for one, two in itertools.pairwise(seen))
    assert outcome.state.skipped_steps == 0


@pytest.mark.parametrize("cut", [4, 7])
@pytest.mark.parametrize(
    "overrides",
    [
        {"training.ema_decay": 0.9, "workload.dropout": 0.5, "training.micro_batch": 3},
        {"optimizer.name": "sgd", "scheduler.name": "linear"},
    ],
)
def test_a_run_killed_while_groups_are_frozen_ends_in_the_same_bytes(toy, tmp_path, grouped, cut, overrides):
    grouped(BODY, HEAD)
    config = toy({"training.log_every_steps": 1, **overrides})
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "parts", StopAfter(cut))
    saved = newest(tmp_path / "parts")
    contents.check(saved)
    fit(config, tmp_path / "parts", resume=saved)
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in whole.tensors)
    assert whole.state == parts.state
    assert stable(tmp_path / "whole" / "metrics.csv") == stable(tmp_path / "parts" / "metrics.csv")


def test_no_gradient_is_computed_for_what_is_frozen_and_model_is_as_it_was_between_steps(
    toy, tmp_path, grouped, monkeypatch
):
    grouped(BODY, HEAD)
    config, seen = toy(), []
    task = type(load_task(config))
    real = task.loss

    def loss(self, model, batch):
        if model.training:
            seen.append((self.step, [p.requires_grad for p in model.parameters()]))
        return real(self, model, batch)

    monkeypatch.setattr(task, "loss", loss)
    outcome = fit(config, tmp_path)
    assert seen == [(step, [4 <= step < 9] * 2 + [True] * 2) for step in range(12)]
    assert all(parameter.requires_grad for parameter in outcome.state.parameters)


def test_memory_that_runs_out_repeats_a_step_with_the_same_groups(toy, tmp_path, grouped, monkeypatch):
    grouped(BODY)
    config = toy({"training.max_steps": 6})
    fit(config, tmp_path / "whole")
    real, calls = step.total_norm, []

    def full_once(grads):
        calls.append(len(grads))
        if len(calls) == 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return real(grads)

    monkeypatch.setattr(step, "total_norm", full_once)
    outcome = fit(config, tmp_path / "full")
    assert calls == [2, 2, 2, 2, 4, 4, 4] and outcome.state.micro_batch == 4
    whole, full = newest(tmp_path / "whole").tensors["model"], newest(tmp_path / "full").tensors["model"]
    assert all(torch.allclose(whole[name], full[name], atol=1e-6) for name in whole)


MISTAKES = [
    ({"lr": 1.0}, "it has no names"), ("head.*", "it has no names"), ({"names": "*", "rate": 1}, "unknown key 'rate'"),
    ({"names": "*", "lr": "fast"}, "lr is 'fast'"), ({"names": "*", "lr": float("nan")}, "lr is nan"),
    ({"names": "*", "from_step": 0.5}, "from_step is 0.5"), ({"names": ["*", 3]}, "it has no names"),
    ({"names": ["blocks.0.*", "head.*"]}, "'head.*' matches no trained parameter"),
]  # fmt: skip


def test_a_mistake_in_a_group_is_named_with_its_entry(toy, grouped):
    for entry, sentence in MISTAKES:
        grouped(entry)
        with pytest.raises(BadInput, match=f"Toy.parameter_groups, entry 1: .*{sentence}"):
            new_state(load_task(toy()), toy())


def test_a_tied_weight_has_all_of_its_names(toy):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4)
            self.head.weight = self.embed.weight

    task = load_task(toy())
    task.parameter_groups = lambda model: [{"names": "head.weight", "lr": 2.0}]
    model = Tied()
    groups = groups_of(task, model)
    assert [list(group.parameters) for group in groups] == [["embed.weight"], ["head.bias"]]
    assert groups[0].parameters["embed.weight"] is model.head.weight


def test_what_model_has_frozen_is_in_no_group(toy):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    task = load_task(toy())
    assert [list(group.parameters) for group in groups_of(task, model)] == [["1.weight", "1.bias"]]
    task.parameter_groups = lambda model: [{"names": "0.*"}]
    with pytest.raises(
        BadInput, match="'0.*' matches no trained parameter that is not in an earlier entry: 1.weight, 1.bias"
    ):
        groups_of(task, model)


def test_a_plan_is_for_the_steps_in_which_most_is_trained(toy, grouped):
    config = toy()
    grouped()
    whole = predict_task(load_task(config), config, find_card("t4"), 4, 1, 1)
    grouped({"names": "blocks.0.*", "from_step": 500})
    assert predict_task(load_task(config), config, find_card("t4"), 4, 1, 1).peak_bytes == whole.peak_bytes


def test_the_average_of_a_group_that_until_step_froze_comes_to_its_weights(toy, tmp_path, grouped):
    grouped({"names": "blocks.0.*", "until_step": 2})
    fit(toy({"training.ema_decay": 0.5}), tmp_path)
    saved = newest(tmp_path).tensors
    name = "blocks.0.weight"
    apart = (saved["ema"][name] - saved["model"][name]).abs().max()
    assert apart < 1e-3 * saved["model"][name].abs().max()


def test_a_model_in_which_everything_is_frozen_is_a_sentence(toy):
    config = toy()
    task = load_task(config)
    model = task.model
    task.model = lambda: model().requires_grad_(False)
    with pytest.raises(BadInput, match=r"Toy.model\(\) .* in which nothing is trained: all of its 4 tensors"):
        new_state(task, config)
    task.model = nn.Tanh
    with pytest.raises(BadInput, match="nothing is trained: it has no parameters"):
        new_state(task, config)


def test_a_loss_without_a_gradient_is_a_sentence_for_a_task_without_groups(toy, tmp_path, monkeypatch):
    config = toy()
    task = type(load_task(config))
    loss = task.loss

    def detached(self, model, batch):
        sums, figures = loss(self, model, batch)
        return {term: value.detach() for term, value in sums.items()} if model.training else sums, figures

    monkeypatch.setattr(task, "loss", detached)
    with pytest.raises(BadInput, match=r"The loss of step 0 has no gradient.*: Toy.loss computes it.*\.detach\(\)"):
        fit(config, tmp_path)
