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
from lib.training import data, optimization
from lib.training import step as steps
from lib.training.order import Order
from lib.training.sizes import saved_bytes
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
    order = Order(config.workload.samples, config.seed, options.effective_batch, 1)
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
    norms, real = [], steps.total_norm
    monkeypatch.setattr(steps, "total_norm", lambda grads: norms.append([g.shape for g in grads]) or real(grads))
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
    steps = _traced_steps(task, [0])
    assert sorted(steps) == sorted([0, turns] * 2) and (turns == 1 or steps[-1] == 0)
    planned = predict_task(task, config, find_card("t4"), 4, 1, 1)
    assert planned.by_category.get("optimizer", 0) >= 2 * 4 * planned.parameters  # the moments of both


# --- terms, gradients and averages of players -------------------------------------------------------------------------


def renamed(monkeypatch, task, names=lambda name: f"{name}_loss"):
    """Gives the terms of a task's loss other names than its players have."""
    count, loss = task.count, task.loss
    monkeypatch.setattr(task, "count", lambda *given: {names(term): n for term, n in count(*given).items()})

    def other(*given):
        sums, figures = loss(*given)
        return {names(term): value for term, value in sums.items()}, figures

    monkeypatch.setattr(task, "loss", other)


def test_a_player_without_a_term_of_its_name_is_refused_where_no_weight_leaves_the_others_out(
    gan, tmp_path, monkeypatch
):
    config = gan({"workload.both": True})
    task = type(load_task(config))
    fit(config, tmp_path / "named")
    renamed(monkeypatch, task)
    said = "the player 'discriminator', and no loss term of Gan has that name .generator_loss, discriminator_loss."
    with pytest.raises(BadInput, match=said):
        fit(config, tmp_path / "shared")

    def weights(self, step):
        resting = {"generator": "discriminator", "discriminator": "generator"}[self.player(step)]
        return {f"{resting}_loss": 0.0}

    monkeypatch.setattr(task, "term_weights", weights)
    fit(config, tmp_path / "weighed")
    named, weighed = newest(tmp_path / "named"), newest(tmp_path / "weighed")
    assert all(same_tensors(named.tensors[group], weighed.tensors[group]) for group in named.tensors)


def test_a_term_that_a_later_batch_does_not_count_ends_no_run(gan, tmp_path, monkeypatch):
    config = gan({"training.max_steps": 4, "workload.both": True})
    task = type(load_task(config))
    count = task.count
    monkeypatch.setattr(task, "count", lambda self, batch: count(self, batch) if self.step < 2 else {"x": 0})
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda self, *given: loss(self, *given) if self.step < 2 else ({}, {}))
    fit(config, tmp_path)
    assert newest(tmp_path).step == 4


def no_gradient(folder):
    path = folder / "events.csv"
    return [row for row in stable(path) if row["kind"] == "no_gradient"] if path.is_file() else []


def test_each_player_is_looked_at_in_its_first_turn_and_nobody_at_rest_is_named(gan, tmp_path, monkeypatch):
    config = gan({"workload.turns": 3, "training.max_steps": 6})
    task = type(load_task(config))
    fit(config, tmp_path / "sound")
    assert no_gradient(tmp_path / "sound") == []
    model = task.model

    def spare(self):
        made = model(self)
        made.generator.register_parameter("spare", nn.Parameter(torch.ones(3)))
        made.register_parameter("served", nn.Parameter(torch.ones(1)))
        made.register_parameter("idle", nn.Parameter(torch.ones(1)))
        return made

    monkeypatch.setattr(task, "model", spare)
    loss = task.loss

    def served(self, model, batch):  # by the generator alone
        sums, figures = loss(self, model, batch)
        return {t: v * model.served.squeeze() if t == "generator" else v for t, v in sums.items()}, figures

    monkeypatch.setattr(task, "loss", served)
    fit(config, tmp_path / "spare", StopAfter(2))
    assert no_gradient(tmp_path / "spare") == []
    fit(config, tmp_path / "whole")
    (row,) = no_gradient(tmp_path / "whole")
    assert (row["step"], row["before"], row["after"]) == ("3", "7", "5")  # the generator's five, and two of nobody
    assert "2 of 7 trained tensors got no gradient (generator.spare, idle)" in row["text"]
    fit(config, tmp_path / "resumed", StopAfter(4))
    fit(config, tmp_path / "resumed", resume=newest(tmp_path / "resumed"))
    assert len(no_gradient(tmp_path / "resumed")) == 1


def test_the_average_of_a_player_moves_in_its_own_turns_alone(gan, tmp_path):
    config = gan({"workload.turns": 5, "training.ema_decay": 0.5, "training.max_steps": 11})
    averages = []
    update = optimization.Ema.update

    def watched(ema, step, *resting):
        update(ema, step, *resting)
        averages.append({name: value.clone() for name, value in ema.average.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimization.Ema, "update", watched)
        fit(config, tmp_path)
    for step in range(6, 11):  # the generator's turn was step 5
        for name, value in averages[step].items():
            assert torch.equal(value, averages[5][name]) == name.startswith("generator"), (step, name)
    weights = newest(tmp_path).tensors["model"]
    behind = averages[5]["generator.0.weight"] - weights["generator.0.weight"]
    assert behind.abs().max() > 0  # and would have come closer


# --- of their own -----------------------------------------------------------------------------------------------------


def kinds(self, model):
    return [
        {"names": "generator.*", "player": "generator", "optimizer": "sgd", "momentum": 0.8, "lr": 3.0},
        {"names": "discriminator.2.*", "player": "discriminator", "optimizer": "adafactor"},
        {"names": "discriminator.*", "player": "discriminator", "betas": (0.5, 0.9)},
    ]


def rates(self, step, total_steps):
    return {"generator": 1 / (1 + step), "discriminator.2": 0.5}


def test_players_with_optimizers_and_schedules_of_their_own_are_torchs_in_a_loop_of_ones_own(
    gan, tmp_path, monkeypatch
):
    config = gan({"scheduler.name": "constant", "optimizer.weight_decay": 0.02, "training.max_steps": 6})
    task = type(load_task(config))
    monkeypatch.setattr(task, "parameter_groups", kinds)
    monkeypatch.setattr(task, "learning_rate", rates)
    start = new_state(load_task(config), config)
    before = {name: value.detach().clone() for name, value in start.model.named_parameters()}
    gradients = []
    step = optimization.Several.step

    def watched(optimizer):
        gradients.append([None if p.grad is None else p.grad.clone() for p in start.model.parameters()])
        step(optimizer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimization.Several, "step", watched)
        patch.setattr("lib.training.state.new_state", lambda *_: start)
        fit(config, tmp_path / "whole")
    for number, (name, value) in enumerate(start.model.named_parameters()):
        own = nn.Parameter(before[name])
        decay = {"params": [own], "weight_decay": 0.02 if own.dim() > 1 else 0.0}
        if name.startswith("generator"):
            optimizer = torch.optim.SGD([decay], 1.0, momentum=0.8)
        elif name.startswith("discriminator.2"):
            optimizer = torch.optim.Adafactor([decay], 1.0)
        else:
            optimizer = torch.optim.AdamW([decay], 1.0, betas=(0.5, 0.9), eps=config.optimizer.eps)
        for turn, every in enumerate(gradients):
            warm = min(1, (turn + 1) / config.scheduler.warmup_steps)
            factors = {torch.optim.SGD: 3 / (1 + turn), torch.optim.Adafactor: 0.5, torch.optim.AdamW: warm}
            optimizer.param_groups[0]["lr"] = config.optimizer.lr * factors[type(optimizer)]
            own.grad = every[number]
            optimizer.step()
        assert torch.allclose(own, value, rtol=1e-6, atol=1e-8), name
    # With what metrics.csv says of it, and from any step on:
    base = column(tmp_path / "whole", "lr")
    want = [3 * config.optimizer.lr / (1 + turn) * (turn % 2 == 1) for turn in range(6)]
    assert column(tmp_path / "whole", "lr_generator") == pytest.approx(want)
    want = [0.5 * config.optimizer.lr * (turn % 2 == 0) for turn in range(6)]
    assert column(tmp_path / "whole", "lr_discriminator.2") == pytest.approx(want)
    assert column(tmp_path / "whole", "lr_discriminator") == pytest.approx(
        [lr * (turn % 2 == 0) for turn, lr in enumerate(base)]
    )
    fit(config, tmp_path / "parts", StopAfter(3))
    contents.check(newest(tmp_path / "parts"))
    fit(config, tmp_path / "parts", resume=newest(tmp_path / "parts"))
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in whole.tensors)
    assert whole.state == parts.state and whole.state["groups"][0]["optimizer"] == "sgd"
    assert {key for key in whole.tensors["optimizer"] if key.endswith("/generator.0.weight")} == {
        "momentum_buffer/generator.0.weight"
    }


def test_a_plan_and_the_size_of_a_checkpoint_count_the_states_of_each_kind(gan, monkeypatch):
    config = gan()
    task = load_task(config)
    task.model = lambda: nn.ModuleDict(
        {"generator": nn.Linear(2, 1000), "discriminator": nn.Sequential(nn.Linear(3, 1000), nn.Tanh())}
    )
    task.count = lambda batch: {name: len(batch["x"]) for name in ("generator", "discriminator")}
    task.loss = lambda model, batch: (
        {"generator": model["generator"](batch["z"]).sum(), "discriminator": model["discriminator"](batch["x"]).sum()},
        {},
    )
    names = [{"names": f"{name}.*", "player": name} for name in ("generator", "discriminator")]
    for kind, moments in {"adamw": 2, "sgd": 1}.items():
        task.parameter_groups = lambda model, kind=kind: [{**names[0], "optimizer": kind}, names[1]]
        planned = predict_task(task, config, find_card("t4"), 4, 1, 1).by_category["optimizer"]
        assert planned == pytest.approx(4 * (moments * 3000 + 2 * 4000), abs=8 * 512)  # in blocks of 512 bytes
        whole, model = saved_bytes(task, config)
        steps = 4 * (4 if kind == "adamw" else 2)  # counters
        assert whole - model == 4 * (moments * 3000 + 2 * 4000) + steps


WRONG = {
    "kind": ({"names": "*", "optimizer": "lion"}, "optimizer is 'lion'. Give one of adamw, sgd, adafactor"),
    "option": ({"names": "*", "optimizer": "sgd", "betas": (0.5, 0.9)}, "betas is an option of adamw, and its optimiz"),
    "missing": ({"names": "*", "momentum": 0.5}, 'Take it out, or write "optimizer": "sgd" beside it'),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_an_optimizer_of_a_group_is_a_sentence(gan, monkeypatch, mistake):
    entry, sentence = WRONG[mistake]
    task = load_task(gan())
    task.parameter_groups = lambda model: [entry]
    with pytest.raises(BadInput) as raised:
        new_state(task, gan())
    assert sentence in str(raised.value)


def test_adafactor_of_a_group_is_refused_where_shards_divide_rows_and_columns(gan):
    task, config = load_task(gan()), gan({"training.fully_shard": True})
    task.parameter_groups = lambda model: [{"names": "generator.*", "optimizer": "adafactor"}]
    with pytest.raises(BadInput, match="A group of parameter_groups has the optimizer adafactor"):
        new_state(task, config)


LATER = [
    ("player", "dd", "player returned 'dd' in step 7"),
    ("learning_rate", -1.0, "learning_rate returned -1.0 in step 7"),
    ("learning_rate", {"generator": float("nan")}, "learning_rate returned nan in step 7"),
    ("learning_rate", {"generators": 1.0}, "a factor for 'generators' in step 7, .*: generator, discriminator"),
]


@pytest.mark.parametrize("method, wrong, said", LATER)
def test_a_mistake_in_a_later_step_is_found_before_the_first(gan, tmp_path, monkeypatch, method, wrong, said):
    config = gan()
    task = type(load_task(config))
    real = getattr(task, method)
    monkeypatch.setattr(task, method, lambda self, step, *more: wrong if step == 7 else real(self, step, *more))
    monkeypatch.setattr(task, "loss", lambda *given: pytest.fail("a step was taken"))
    with pytest.raises(BadInput, match=said):
        fit(config, tmp_path)


def test_a_group_with_a_clip_norm_of_its_own_is_clipped_by_its_own_gradients(gan, tmp_path, monkeypatch):
    config = gan({"workload.both": True, "training.max_steps": 1, "training.clip_norm": 0.05})
    task = type(load_task(config))
    monkeypatch.setattr(task, "player", lambda self, step: None)
    own = [{"names": "generator.*", "clip_norm": 0.001}, {"names": "discriminator.0.*", "clip_norm": 0}]
    step = torch.optim.AdamW.step

    def norms(entries):
        """The norm of the gradients of generator, first and last layer of the discriminator at the update."""
        monkeypatch.setattr(task, "parameter_groups", lambda self, model: entries)
        found = []

        def watched(optimizer):
            named = {part["label"]: [] for part in optimizer.param_groups}
            for part in optimizer.param_groups:
                named[part["label"]] += [p.grad for p in part["params"]]
            found.extend(float(nn.utils.get_total_norm(gradients)) for gradients in named.values())
            step(optimizer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", watched)
            fit(config, tmp_path / str(len(entries[0])))
        return found

    free = norms([{**entry, "clip_norm": 0} for entry in own])
    assert free[0] > 0.01 and free[1] > 0.01
    assert norms([dict(entry, lr=2.0) for entry in own]) == pytest.approx([0.001, free[1], 0.05], rel=1e-3)
    saved = newest(tmp_path / "3").state["groups"]
    assert [group["clip_norm"] for group in saved] == [0.001, 0]


def test_an_overflow_of_one_player_halves_the_loss_scale_of_that_one_alone(gan, tmp_path, monkeypatch):
    config = gan({"training.max_steps": 6})
    task = type(load_task(config))
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, init_scale=1024.0, **_: real(device, init_scale))
    loss = task.loss

    def overflowing(self, model, batch):
        sums, figures = loss(self, model, batch)
        return {term: value * (torch.inf if self.step == 3 else 1) for term, value in sums.items()}, figures

    monkeypatch.setattr(task, "loss", overflowing)
    fit(config, tmp_path / "whole")
    whole = newest(tmp_path / "whole")
    contents.check(whole)
    assert {name: one["scale"] for name, one in whole.state["scalers"].items()} == {
        "generator": 512.0, "discriminator": 1024.0,
    }  # fmt: skip
    assert whole.state["scaler"]["scale"] == 1024.0 and whole.state["skipped_steps"] == 1
    fit(config, tmp_path / "parts", StopAfter(5))
    saved = newest(tmp_path / "parts")
    fit(config, tmp_path / "parts", resume=saved)
    parts = newest(tmp_path / "parts")
    assert whole.state == parts.state
    assert all(same_tensors(whole.tensors[group], parts.tensors[group]) for group in whole.tensors)
    earlier = {key: value for key, value in saved.state.items() if key != "scalers"}  # as an earlier version wrote it
    earlier["scaler"] = {**earlier["scaler"], "scale": 256.0}
    fit(config, tmp_path / "parts", resume=checkpoint.Checkpoint(saved.path, saved.step, saved.tensors, earlier))
    assert newest(tmp_path / "parts").state["scalers"]["generator"]["scale"] == 256.0
    for odd in (3, {"generator": 3}):
        with pytest.raises(checkpoint.DamagedCheckpoint, match="scalers in state.json"):
            contents.check(checkpoint.Checkpoint(None, 5, saved.tensors, {**saved.state, "scalers": odd}))
