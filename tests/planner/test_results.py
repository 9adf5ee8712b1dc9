"""Remembered shapes are equal to computed ones."""

import pytest
import torch
from torch import nn

from lib.planner import predict
from lib.planner.results import Results
from tests.planner.models import Encoder

ATEN = torch.ops.aten


def on_meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def form(value):
    return value.shape, value.stride(), value.dtype


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (ATEN.mul.Tensor, (on_meta(3, 1), on_meta(4))),
        (ATEN.mul.Tensor, (on_meta(3, dtype=torch.int64), 2.0)),
        (ATEN.mul.Tensor, (on_meta(3, dtype=torch.int64), 2)),
        (ATEN.add.Tensor, (on_meta(4, 3).t(), on_meta(3, 4))),
        (ATEN.mm.default, (on_meta(2, 3), on_meta(3, 5))),
        (ATEN.native_layer_norm.default, (on_meta(2, 3), [3], on_meta(3), None, 1e-5)),
    ],
)
def test_a_remembered_result_has_shape_strides_and_type_of_a_computed_one(func, args):
    results = Results()
    computed = results.of(func, args, {})
    remembered = results.of(func, args, {})
    assert len(results._made) == 1
    assert type(computed) is type(remembered)
    if not isinstance(computed, tuple):
        computed = (computed,)
        remembered = (remembered,)
    for one, other in zip(computed, remembered, strict=True):
        assert form(one) == form(other)
        assert one is not other


def test_arguments_that_decide_the_result_are_told_apart():
    results = Results()
    x = on_meta(3, dtype=torch.int64)
    products = [results.of(ATEN.mul.Tensor, (x, factor), {}) for factor in (2, 2.0, True)]
    dtypes = [product.dtype for product in products]
    assert dtypes == [torch.int64, torch.float32, torch.int64]
    assert len(results._made) == 3


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (ATEN.view.default, (on_meta(4), [2, 2])),
        (ATEN.add_.Tensor, (on_meta(4), 1)),
        (ATEN.native_dropout.default, (on_meta(4), 0.5, False)),
    ],
)
def test_views_changes_in_place_and_results_that_are_an_argument_are_not_remembered(func, args):
    results = Results()
    for _ in range(2):
        out = results.of(func, args, {})
        first = out[0] if isinstance(out, tuple) else out
        is_argument = first.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        assert is_argument or not results._made


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_prediction_is_the_same_with_and_without_memory(precision, monkeypatch):
    def step(net):
        return net(torch.randint(0, 50, (2, 16), device="cuda")).float().sum()

    def model():
        return nn.Sequential(nn.Embedding(50, 16), Encoder(2, 16))

    remembered = predict(model, step, precision=precision)
    monkeypatch.setattr(Results, "of", lambda self, func, args, kwargs: func(*args, **kwargs))
    assert predict(model, step, precision=precision) == remembered
