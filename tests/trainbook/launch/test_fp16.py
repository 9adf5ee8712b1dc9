"""What fp16 does not hold is found by module, on a CPU as on a card, and a sound model gets no false alarm."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.planner import fp16
from lib.task import load_config, load_task
from lib.training.precision import keep_in_fp32
from tests.toy import Toy
from trainbook import launch, new
from trainbook.launch.checks import check

WIDTH = 16


def outlier(layer, factor):
    with torch.no_grad():
        layer.weight.mul_(factor)
    return layer


class FeedForward(nn.Module):
    """T5's gated feed-forward layer, whose `wo` leaves fp16 in T5-large and up."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.wi_0, self.wi_1, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        outlier(self.wo, factor)

    def forward(self, x):
        return self.wo(F.gelu(self.wi_0(x)) * self.wi_1(x))


class Block(nn.Module):
    def __init__(self, layer, scale=1.0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = layer
        self.scale = scale

    def forward(self, x):
        return x + self.scale * self.layer(self.norm(x))


class Attention(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.qkv = outlier(nn.Linear(WIDTH, 3 * WIDTH), factor)
        self.factor = factor

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value / self.factor


class Function(nn.Module):
    """A layer, and a function of its output that has no module of its own."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x):
        return self.function(self.inner(x))


class Rms(nn.Module):
    def forward(self, x):
        return (
            x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        )  # CUDA's autocast computes pow in fp32


def summed(x):
    """A residual stream in fp16, as of a base that is stored so."""
    for _ in range(12):
        x = x + 1e4 * x.sign()
    return x / 1e5


PLANTED = {
    "T5's wo": (lambda: Block(FeedForward(1e7), 1e-6), ["2.layer.wo"]),
    "a product": (lambda: nn.Sequential(outlier(nn.Linear(WIDTH, WIDTH), 1e6), Rms()), ["2.0"]),
    "attention without scaling": (lambda: Attention(1e3), ["2"]),
    "a square": (lambda: Block(Function(lambda x: (300 * x) * (300 * x) / 1e5)), ["2.layer"]),
    "a residual stream": (lambda: Function(summed), ["2"]),
    "a gradient": (lambda: Function(lambda x: 3e4 * (1e4 * (x * 1e-8))), ["2"]),
    "an einsum": (lambda: Function(lambda x: torch.einsum("bij,bik->bjk", 1e4 * x, 1e4 * x)[:, :5] / 1e9), ["2"]),
    "two places": (lambda: nn.Sequential(Block(FeedForward(1e7), 1e-6), Block(FeedForward(1e7), 1e-6)),
                   ["2.0.layer.wo", "2.1.layer.wo"]),
}  # fmt: skip
SOUND = {
    "feed-forward": lambda: Block(FeedForward()),
    "attention": lambda: Block(Attention()),
    "by pow": lambda: nn.Sequential(outlier(nn.Linear(WIDTH, WIDTH), 1e3), Rms()),
    "a mask of -inf": lambda: Function(lambda x: x.masked_fill(x > 0.5, -torch.inf).softmax(-1)),
    "batch statistics": lambda: nn.Sequential(nn.Conv1d(5, 5, 1), nn.BatchNorm1d(5), nn.ReLU()),
}


class Planted(Toy):
    body = None

    def model(self):
        return nn.Sequential(
            nn.Linear(3, 5 * WIDTH), nn.Unflatten(1, (5, WIDTH)), self.body(), nn.Flatten(), Head()
        )


class Head(nn.Module):
    """The mean of all numbers, by a trained factor."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.factor * x.float().mean(1, keepdim=True)


def examined(toy, body, **overrides):
    config = toy(overrides)
    return fp16.examine_fp16(
        type("Planted", (Planted,), {"body": staticmethod(body)})(config), config
    )


@pytest.mark.parametrize(("body", "names"), PLANTED.values(), ids=PLANTED)
def test_a_planted_overflow_is_named_and_in_fp32_all_is_finite(body, names, toy):
    result = examined(toy, body)
    assert list(result.modules) == names
    assert result.scale >= 64
    assert result.finding.verdict == "bad"
    assert f"fp32_modules: [{', '.join(names)}]" in result.finding.advice
    again = examined(toy, body, **{"training.fp32_modules": names})
    assert not again.modules
    assert again.finding.verdict == "ok"


@pytest.mark.parametrize("body", SOUND.values(), ids=SOUND)
def test_a_sound_model_gets_no_false_alarm(body, toy):
    for seed in range(2):
        assert examined(toy, body, seed=seed).finding.verdict == "ok"


def test_a_module_in_fp32_gives_fp32_and_a_name_that_is_none_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
    keep_in_fp32(model, ["1"], torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0](torch.ones(1, 4)).dtype is torch.bfloat16
        assert model(torch.ones(1, 4)).dtype is torch.float32
    with pytest.raises(
        BadInput, match="fp32_modules has 'head', and the model has no such module. It has 0, 1"
    ):
        keep_in_fp32(model, ["head"], torch.device("cpu"))


def test_a_run_with_a_module_in_fp32_trains_resumes_and_is_another_run_without(toy, quick):
    config = {"training.precision": "fp16", "training.fp32_modules": ["blocks.3"]}
    assert launch.train(toy(config)).reason == "completed"
    with pytest.raises(BadInput, match="fp32_modules"):
        launch.train(toy({**config, "training.fp32_modules": [], "training.max_steps": 14}))


def test_auto_decides_once_and_a_resumed_run_keeps_it(toy, quick, monkeypatch):
    layers = nn.Linear(3, 4), outlier(nn.Linear(4, 4), 1e6), Rms(), nn.Linear(4, 1)
    monkeypatch.setattr(
        type(load_task(toy())), "model", lambda self: nn.Sequential(*map(copy.deepcopy, layers))
    )
    options = {"training.fp32_modules": ["auto"]}
    assert launch.prepare(toy(options)).config.training.fp32_modules == (), (
        "in fp32 there is nothing to find"
    )
    options["training.precision"] = "fp16"
    run = launch.prepare(toy(options))
    assert run.config.training.fp32_modules == ("1",)
    assert run.lengths[-1] == "In fp32 (training.fp32_modules): 1."
    assert run.identity["training.fp32_modules"] == ["1"]
    assert launch.train(run).skipped_steps < 4
    monkeypatch.setattr(fp16, "examine_fp16", lambda *_: pytest.fail("it decided again"))
    longer = launch.prepare(toy({**options, "training.max_steps": 14}))
    assert longer.config.training.fp32_modules == ("1",)
    assert launch.train(longer).step == 14


@pytest.mark.parametrize("kind", new.KINDS)
def test_the_examples_of_new_get_no_false_alarm(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new.write("my", kind, tmp_path)
    once = ("chat", "series")  # a base is the same for every seed; twelve numbers take long to fit
    for seed in range(1 if kind in once else 2):
        run = launch.prepare(load_config("my.yaml", {"seed": seed}))
        checked = fp16.examine_fp16(run.task, run.config)
        assert checked.finding.verdict == "ok", f"seed {seed}: {checked.finding}"
        assert checked.scale == 65_536, f"seed {seed}: {checked.finding}"


class Prices(Planted):
    """A loss of numbers as large as prices: no loss scale of 64 holds its gradient."""

    def body(self):
        return nn.Identity()

    def loss(self, model, batch):
        sums, figures = super().loss(model, batch)
        return {"squared": sums["squared"] * 1e9}, figures


def test_a_gradient_that_the_loss_makes_too_large_is_named_by_what_it_reaches(toy):
    finding = fp16.examine_fp16(Prices(toy()), toy()).finding
    assert finding.verdict == "bad"
    assert "the gradient that reaches" in finding.value
    assert "standardised targets" in finding.advice


class Masked(nn.Module):
    """Attention whose mask is a large number, in one of the ways that people write it."""

    def __init__(self, fill):
        super().__init__()
        self.inner = Attention()
        self.fill = fill

    def forward(self, x):
        scores = self.inner.qkv(x)
        return self.fill(scores, scores > 9).softmax(-1)[..., :WIDTH]


FILLS = {
    "masked_fill": lambda scores, mask: scores.masked_fill(mask, -1e9),
    "full_like": lambda scores, mask: torch.where(mask, torch.full_like(scores, -1e9), scores),
    "clamp": lambda scores, mask: scores.clamp(max=1e6),
    "pad": lambda scores, mask: F.pad(scores, (0, 1), value=-1e9),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_constant_beyond_fp16_is_named_with_its_line_and_what_to_write(toy, monkeypatch, name):
    config = toy({"training.precision": "fp16"})
    layers = nn.Linear(3, WIDTH), Masked(FILLS[name]), nn.Linear(WIDTH, 1)
    monkeypatch.setattr(
        type(load_task(config)), "model", lambda self: nn.Sequential(*map(copy.deepcopy, layers))
    )
    finding = fp16.examine_fp16(load_task(config), config).finding
    words = r"A constant is beyond fp16, which ends at 65,504 \(.*test_fp16.py:\d+: .*1e\d.* Write torch.finfo"
    assert finding.verdict == "bad", finding
    assert re.search(words, finding.value), finding
    with pytest.raises(BadInput, match=words):
        check(config)
    with pytest.raises(BadInput, match=words):
        launch.train(config)
