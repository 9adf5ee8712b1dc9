"""Two networks that play against each other: whose turn it is follows from the step, and the other one rests."""

import itertools

import pytest
import torch
from torch import nn

from lib import checkpoint
from lib.checkpoint import contents
from lib.errors import BadInput
from lib.planner import find_card
from lib.planner.trace import _traced_steps, predict_task
from lib.task import load_task
from lib.training import data
from lib.training.order import Order
from lib.training.state import new_state
from tests.conftest import ROOT
from tests.training.test_groups import column, trained
from tests.training.test_loop import StopAfter, fit, newest, same_tensors, stable

MOST = {"training.max_steps": 14, "training.log_every_steps": 1, "training.clip_norm": 0.05}


@pytest.fixture
def gan(toy):
    return lambda overrides=None: toy({"task": f"{ROOT}/tests/gan.py:Gan", **MOST, **(overrides or {})})


def by_hand(config):
    """The usual loop: two optimizers, each over its own network, in turn."""
    task = load_task(config)
    torch.manual_seed(0)
    model = new_state(task, config).model
    players = {name: list(getattr(model, name).parameters()) for name in ("generator", "discriminator")}
    optimizers = {
        "generator": torch.optim.AdamW(players["generator"], betas=(0.5, 0.9)),
        "discriminator": torch.optim.AdamW(players["discriminator"], betas=config.optimizer.betas),
    }
    for optimizer in optimizers.values():  # vectors are not decayed
        (group,) = optimizer.param_groups
        vectors = [p for p in group["params"] if p.dim() < 2]
        group["params"] = [p for p in group["params"] if p.dim() >= 2]
        group["weight_decay"] = config.optimizer.weight_decay
        optimizer.add_param_group({**group, "params": vectors, "weight_decay": 0.0})
    options, turns = config.training, config.workload.turns
    order = Order(config.workload.samples, config.seed, options.effective_batch, options.micro_batch_slots)
    batches = data.train_batches(task, task.datasets()["train"], order, range(options.max_steps), config.data)
    for step, (batch,) in batches:
        name = "generator" if step % (turns + 1) == turns else "discriminator"
        for group in optimizers[name].param_groups:
            rate = config.optimizer.lr * min(1, (step + 1) / config.scheduler.warmup_steps)
            group["lr"] = rate * (4 if name == "discriminator" else 1)
        model.zero_grad()
        made = model.generator(batch["z"])
        if name == "generator":
            loss = nn.functional.softplus(-model.discriminator(made)).mean()
        else:
            real, fake = model.discriminator(batch["x"]), model.discriminator(made.detach())
            loss = nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(players[name], options.clip_norm)
        optimizers[name].step()
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("turns", [1, 5])
def test_players_in_turn_are_two_optimizers_in_a_loop_of_ones_own(gan, tmp_path, turns):
    config = gan({"workload.turns": turns, "scheduler.name": "constant"})
    fit(config, tmp_path)
    got, want = newest(tmp_path).tensors["model"], by_hand(config)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert torch.allclose(got[name], value, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("turns", [1, 5])
def test_the_one_whose_turn_it_is_not_rests_with_its_moments(gan, tmp_path, turns):
    seen = []
    trained(gan({"workload.turns": turns}), tmp_path, seen)
    generator, discriminator = (0, 1, 2, 3), (4, 5, 6, 7)
    for step, (one, two) in enumerate(itertools.pairwise(seen)):
        playing, resting = generator, discriminator
        if step % (turns + 1) != turns:
            playing, resting = resting, playing
        assert all(len(one[i]) == len(two[i]) and all(map(torch.equal, one[i], two[i])) for i in resting), step
        assert not any(torch.equal(one[i][0], two[i][0]) for i in playing), step
    base = column(tmp_path, "lr")
    plays = [step % (turns + 1) == turns for step in range(14)]
    rates = zip(plays, base, strict=True)
    assert column(tmp_path, "lr_generator") == [lr if is_on else 0 for is_on, lr in rates]
    rates = zip(plays, base, strict=True)
    assert column(tmp_path, "lr_discriminator") == pytest.approx([0 if is_on else 4 * lr for is_on, lr in rates])
    rows = [row for row in stable(tmp_path / "metrics.csv") if row["split"] == "train"]
    assert [row["loss_generator"] != "" for row in rows] == plays
    assert [row["loss_discriminator"] == "" for row in rows] == plays
    assert all(row["loss"] == row["loss_generator"] or row["loss_discriminator"] for row in rows)


def test_a_row_has_the_mean_of_each_term_over_the_steps_of_its_player(gan, tmp_path):
    """Also where it began before a kill; a step that is skipped counts for nobody."""
    config = gan({"workload.turns": 2, "training.max_steps": 12})
    fit(config, tmp_path / "each")
    each = [row for row in stable(tmp_path / "each" / "metrics.csv") if row["split"] == "train"]
    config = gan({"workload.turns": 2, "training.max_steps": 12, "training.log_every_steps": 6})
    fit(config, tmp_path / "rows", StopAfter(4))
    saved = newest(tmp_path / "rows")
    contents.check(saved)
    assert saved.state["pending"]["rested"] == {"generator": 3, "discriminator": 1}
    fit(config, tmp_path / "rows", resume=saved)
    rows = [row for row in stable(tmp_path / "rows" / "metrics.csv") if row["split"] == "train"]
    for number, row in enumerate(rows):
        steps = each[6 * number : 6 * number + 6]
        for name in ("loss_generator", "loss_discriminator"):
            values = [float(step[name]) for step in steps if step[name]]
            assert len(values) == (2 if name == "loss_generator" else 4)
            assert float(row[name]) == pytest.approx(sum(values) / len(values), rel=1e-6)
    odd = {**saved.state, "pending": {"rested": {"generator": "x"}}}
    with pytest.raises(checkpoint.DamagedCheckpoint, match="pending in state.json"):
        contents.check(checkpoint.Checkpoint(None, 4, saved.tensors, odd))


@pytest.mark.parametrize("turns, cut", [(1, 3), (5, 5), (5, 6)])
def test_one_killed_in_anybodys_turn_ends_in_the_same_bytes(gan, tmp_path, turns, cut):
    config = gan({"workload.turns": turns, "training.ema_decay": 0.9, "training.micro_batch": 4})
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "parts", StopAfter(cut))
    fit(config, tmp_path / "parts", resume=newest(tmp_path / "parts"))
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in whole.tensors)
    assert whole.state == parts.state
    assert stable(tmp_path / "whole" / "metrics.csv") == stable(tmp_path / "parts" / "metrics.csv")


def test_a_term_of_the_other_player_may_be_computed_or_left_out(gan, tmp_path):
    for both in (False, True):
        fit(gan({"workload.both": both}), tmp_path / str(both))
    left_out, computed = newest(tmp_path / "False"), newest(tmp_path / "True")
    assert all(same_tensors(left_out.tensors[group], computed.tensors[group]) for group in computed.tensors)
    assert stable(tmp_path / "False" / "metrics.csv") == stable(tmp_path / "True" / "metrics.csv")


def test_gradients_are_clipped_by_the_norm_of_the_one_that_plays(gan, tmp_path, monkeypatch):
    norms, real = [], nn.utils.get_total_norm
    monkeypatch.setattr(nn.utils, "get_total_norm", lambda grads: norms.append([g.shape for g in grads]) or real(grads))
    fit(gan({"training.max_steps": 3}), tmp_path)
    discriminator, generator = [(4, 3), (4,), (1, 4), (1,)], [(4, 2), (4,), (3, 4), (3,)]
    assert norms == [discriminator, generator, discriminator]


def test_a_term_of_the_one_that_plays_must_not_be_left_out(gan, tmp_path, monkeypatch):
    config = gan()
    task = type(load_task(config))
    monkeypatch.setattr(task, "loss", lambda self, model, batch: ({"generator": model.generator(batch["z"]).sum()}, {}))
    with pytest.raises(BadInput, match="targets of the term 'discriminator', and Gan.loss returned no such term"):
        fit(config, tmp_path)


@pytest.mark.parametrize("name", ["critic", 3])
def test_a_player_that_no_group_has_is_a_sentence(gan, tmp_path, monkeypatch, name):
    config = gan()
    monkeypatch.setattr(type(load_task(config)), "player", lambda self, step: name)
    with pytest.raises(BadInput, match=f"Gan.player returned {name!r} in step 0.*They have: discriminator, generator"):
        fit(config, tmp_path)


def test_a_step_without_a_player_trains_all(gan, tmp_path, monkeypatch):
    config = gan({"workload.both": True, "training.max_steps": 1})
    monkeypatch.setattr(type(load_task(config)), "player", lambda self, step: None)
    before = {name: value.clone() for name, value in new_state(load_task(config), config).model.named_parameters()}
    fit(config, tmp_path)
    after = newest(tmp_path).tensors["model"]
    assert not any(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("turns", [1, 5])
def test_a_plan_sees_the_turns_of_both(gan, turns):
    config = gan({"workload.turns": turns})
    task = load_task(config)
    steps = _traced_steps(task)
    assert sorted(steps) == sorted([0, turns] * 2) and (turns == 1 or steps[-1] == 0)
    planned = predict_task(task, config, find_card("t4"), 4, 1, 1)
    assert planned.by_category.get("optimizer", 0) >= 2 * 4 * planned.parameters  # the moments of both
