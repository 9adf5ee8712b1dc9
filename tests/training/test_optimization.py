"""Optimizers, schedules, plateau and average: torch's own numbers, the same after a kill, and planned."""

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.planner import find_card
from lib.planner.trace import predict_task
from lib.report.metrics import read, series
from lib.task import load_task
from lib.training import optimization
from lib.training.optimization import Ema, Group, Plateau, learning_rate, make_moments
from lib.training.state import saved_bytes
from tests.checkpoint.test_weights import net
from tests.training.test_loop import StopAfter, check_resume, fit, newest

KINDS = {
    "adamw": {},
    "sgd": {"optimizer.name": "sgd"},
    "sgd without momentum": {"optimizer.name": "sgd", "optimizer.momentum": 0},
}
MUON = {"optimizer.name": "muon"}
# of the states of a parameter; with muon those of the one large matrix
BYTES = {"adamw": 8, "sgd": 4, "sgd without momentum": 0, "muon": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_torchs_own_optimizer_bit_for_bit(toy, kind):
    """With the states that are made beforehand, of matrices that are decayed and vectors that are not."""
    options = toy(KINDS[kind]).optimizer
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in [(4, 3), (2, 3, 3, 3), (40,), ()]]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    optimizer = optimization.build([Group(dict(zip("abcd", ours, strict=True)))], toy(KINDS[kind]))
    groups = [
        {"params": theirs[:2], "weight_decay": options.weight_decay},
        {"params": theirs[2:], "weight_decay": 0.0},
    ]
    torchs = torch.optim.AdamW(groups, options.lr, options.betas, options.eps)
    if options.name == "sgd":
        torchs = torch.optim.SGD(
            groups, options.lr, momentum=options.momentum, nesterov=options.nesterov
        )
    for seed in range(4):
        for parameters in (ours, theirs):
            draw = torch.Generator().manual_seed(seed)
            for number, parameter in enumerate(
                parameters
            ):  # zeros of both signs, and one that joins later
                gradient = torch.randn(parameter.shape, generator=draw)
                gradient *= torch.rand(parameter.shape, generator=draw) > 0.3
                parameter.grad = gradient if seed or number != 1 else None
        make_moments(optimizer)
        optimizer.step()
        torchs.step()
        for a, b in zip(ours, theirs, strict=True):
            mine = optimizer.state.get(a, {})
            its = torchs.state.get(b, {})
            assert torch.equal(a, b)
            assert mine.keys() == its.keys()
            for name, value in its.items():
                assert value.dtype == mine[name].dtype
                assert value.shape == mine[name].shape
                assert (
                    value.flatten().numpy().tobytes() == mine[name].flatten().numpy().tobytes()
                ), name


def test_adamw_in_one_kernel_trains_as_its_other_form_and_resumes_to_the_same_bytes(
    toy, tmp_path, monkeypatch
):
    config = toy({"training.precision": "fp16", "training.max_steps": 8})
    fit(config, tmp_path / "other")
    monkeypatch.setattr(optimization, "_FUSED_ON", ("cpu",))
    whole = fit(config, tmp_path / "whole").state
    assert whole.optimizer.defaults["fused"]
    assert whole.scaler.is_enabled()
    one = check_resume(config, tmp_path, 3).tensors
    other = newest(tmp_path / "other").tensors
    for group in ("model", "optimizer"):
        for name, value in other[group].items():
            assert torch.allclose(value, one[group][name], rtol=1e-4, atol=1e-6), name


def test_a_checkpoint_of_another_optimizer_says_that_its_states_begin_anew(toy, tmp_path, capsys):
    fit(toy({"optimizer.name": "sgd"}), tmp_path, StopAfter(5))
    outcome = fit(toy(), tmp_path, resume=newest(tmp_path))
    assert outcome.state.step == 12
    said = "The checkpoint is of another optimizer, which begins anew for 4 of 4 parameters."
    assert said in capsys.readouterr().out
    assert {key.partition("/")[0] for key in newest(tmp_path).tensors["optimizer"]} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }


@pytest.mark.parametrize("kind", BYTES)
def test_plan_and_preflight_count_the_bytes_that_each_optimizer_takes_a_parameter(toy, kind):
    config = toy(KINDS.get(kind, MUON))
    task = load_task(config)
    task.model = lambda: nn.Sequential(
        nn.Linear(3, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 1)
    )
    task.blocks = lambda model: [model[1]]
    planned = predict_task(task, config, find_card("t4"), 4, 1, 1).by_category
    parameters = sum(p.numel() for p in task.model().parameters())
    assert planned.get("optimizer", 0) / parameters == pytest.approx(BYTES[kind], abs=0.1)
    whole, model = saved_bytes(task, config)
    assert model == 4 * parameters
    assert (whole - model) / parameters == pytest.approx(BYTES[kind], abs=0.1)


class Words(nn.Module):
    """Two blocks between an embedding and a head that are tied."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 8) for _ in range(2))
        self.blocks[0].places = nn.Embedding(3, 4)
        self.blocks[1].linear1.requires_grad_(False)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.words.weight


def test_muon_has_the_matrices_of_the_blocks_without_embeddings_and_frozen_ones():
    model = Words()
    hidden = optimization.hidden_matrices(model, model.blocks)
    names = {name for name, parameter in model.named_parameters() if parameter in hidden}
    first = {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear2.weight"}
    second = {f"blocks.1.{name}" for name in first}
    assert names == {f"blocks.0.{name}" for name in [*first, "linear1.weight"]} | second


def test_muon_needs_matrices_in_blocks():
    with pytest.raises(BadInput, match="this one has none.*choose adamw"):
        optimization.hidden_matrices(nn.Sequential(nn.Linear(2, 2)), [])


def test_muon_updates_hidden_matrices_as_torchs_muon_and_the_rest_as_adamw(toy):
    config = toy(MUON)
    options = config.optimizer
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in [(6, 4), (4, 6), (5, 4), (4,)]]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    groups = [Group(dict(zip("abcd", ours, strict=True)))]
    optimizer = optimization.build(groups, config, set(ours[:2]))
    optimization.set_learning_rate(optimizer, options.lr)
    muon = torch.optim.Muon(
        theirs[:2], options.lr, options.weight_decay, 0.95, adjust_lr_fn="match_rms_adamw"
    )
    rest = [
        {"params": theirs[2:3], "weight_decay": options.weight_decay},
        {"params": theirs[3:], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(rest, options.lr, options.betas, options.eps)
    for _ in range(3):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        make_moments(optimizer)
        optimizer.step()
        muon.step()
        adamw.step()
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine, its)
        states = muon.state.get(its) or adamw.state[its]
        assert optimizer.state[mine].keys() == states.keys()
        assert all(torch.equal(optimizer.state[mine][name], states[name]) for name in states)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_with_muon_ends_in_the_same_bytes_wherever_it_is_cut(toy, tmp_path, precision):
    config = toy({**MUON, "training.precision": precision, "training.ema_decay": 0.9})
    end = check_resume(config, tmp_path, 5)
    kinds = {name: set() for name, _ in load_task(config).model().named_parameters()}
    for key in end.tensors["optimizer"]:
        kind, _, name = key.partition("/")
        kinds[name].add(kind)
    momentum = {"momentum_buffer"}
    moments = {"step", "exp_avg", "exp_avg_sq"}
    assert kinds == {
        "blocks.0.weight": momentum,
        "blocks.0.bias": moments,
        "blocks.3.weight": momentum,
        "blocks.3.bias": moments,
    }


def test_schedules_warm_up_and_fall_to_their_floor(toy):
    def rates(name, warmup, floor):
        lengths = {
            "scheduler.warmup_steps": warmup,
            "training.max_steps": 10,
            "scheduler.min_lr_ratio": floor,
        }
        config = toy({"scheduler.name": name, "optimizer.lr": 1.0, **lengths})
        return [learning_rate(config, step) for step in range(11)]

    assert rates("linear", 2, 0.2) == pytest.approx([0.5, 1.0, *(1 - 0.1 * k for k in range(9))])
    cosine = rates("cosine", 4, 0.1)
    assert cosine[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    assert cosine[10] == pytest.approx(0.1)
    assert rates("constant", 2, 0.0) == [0.5, *[1.0] * 10]


def test_the_rate_falls_after_more_evaluations_without_gain_than_patience_bears(toy):
    config = toy({"scheduler.name": "plateau", "scheduler.factor": 0.1, "scheduler.patience": 2, "optimizer.lr": 1.0,
                  "scheduler.min_lr": 0.05, "training.evaluate_every_steps": 1})  # fmt: skip
    plateau = Plateau(config, "min")
    values = [
        3,
        2,
        2,
        2,
        2,
        float("nan"),
        2,
        2,
        1,
        1,
    ]  # 2 is best from the second on; NaN is better than nothing
    lowered = [plateau.observe(value) for value in values]
    assert [number for number, fell in enumerate(lowered) if fell] == [4, 7]
    assert plateau.lr == 0.05


def test_a_run_lowers_its_learning_rate_says_so_and_keeps_it(toy, tmp_path, capsys):
    every = {"training.evaluate_every_steps": 1, "training.log_every_steps": 1}
    plateau = {"scheduler.name": "plateau", "scheduler.warmup_steps": 2, "scheduler.patience": 0}
    config = toy({**every, **plateau, "optimizer.lr": 0.3})
    fit(config, tmp_path)
    rows = read(tmp_path / "metrics.csv")
    ours = Plateau(config, "min")
    rates = []
    for step, value in enumerate(series(rows, "validation", "loss")[1]):
        rates.append(ours.lr * min(1, (step + 1) / 2))  # the warm-up comes first
        ours.observe(value)
    assert series(rows, "train", "lr")[1] == rates
    assert len(set(rates)) > 3
    said = capsys.readouterr().out
    assert (
        "loss has not improved for 1 validations; the learning rate goes from 0.3 to 0.15" in said
    )
    assert newest(tmp_path).state["plateau"] == ours.facts()


def test_the_average_equals_its_formula_and_is_applied_only_inside():
    model = net()
    ema = Ema(model, 0.5)
    want = {name: value.detach().clone() for name, value in model.named_parameters()}
    for step in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += step + 1
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in model.named_parameters():
            want[name] = decay * want[name] + (1 - decay) * value.detach()
    trained = {name: value.detach().clone() for name, value in model.named_parameters()}
    with ema.applied():
        assert all(torch.allclose(value, want[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, trained[name]) for name, value in model.named_parameters())
