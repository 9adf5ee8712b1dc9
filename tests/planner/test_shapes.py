"""What is remembered of operators on `meta` tensors is what PyTorch returns for them."""

import numpy as np
import pytest
import torch
from torch import nn

from lib.planner import predict, shapes
from tests.planner.models import Inverted, LanguageModel


@pytest.fixture
def run():
    """run(func, *args) -> the result of an operator that has been there before, from a memory of its own."""
    memory = shapes.Shapes(lambda func, args, kwargs, out: np.zeros(5))

    def twice(func, *args, **kwargs):
        return [memory.run(func, args, kwargs, shapes.tensors_of(args))[0] for _ in range(2)]

    return twice


def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def layout(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes()


def test_a_prediction_is_the_same_as_without_memory(monkeypatch):
    def image(net):
        return net(torch.randn(2, 8, 16, 16, device="cuda")).logsumexp(1).sum()

    def text(net):
        return net(torch.randint(0, 100, (2, 64), device="cuda"))

    kinds = [(lambda: nn.Sequential(*(Inverted(8, 8, 3, 1, 2) for _ in range(2))), image)]
    kinds += [(lambda: LanguageModel(100, 16), text)]
    remembered = [predict(kind, step, precision="fp16") for kind, step in kinds]
    monkeypatch.setattr(shapes, "_kind", lambda func: "")
    assert [predict(kind, step, precision="fp16") for kind, step in kinds] == remembered


def test_equal_numbers_of_other_types_are_told_apart(run):
    whole = empty(4, dtype=torch.long)
    types = [[out.dtype for out in run(torch.ops.aten.mul.Tensor, whole, by)] for by in (2, 2.0, 1, True)]
    assert types == [[torch.long] * 2, [torch.float32] * 2, [torch.long] * 2, [torch.long] * 2]


def test_new_results_have_storages_of_their_own(run):
    x = empty(8, 6).t()
    first, second = run(torch.ops.aten.relu.default, x)
    assert layout(first) == layout(second) and second.stride() == (1, 6)
    assert len({t.untyped_storage()._cdata for t in (x, first, second)}) == 3


def test_results_in_the_storage_of_an_argument_stay_there(run):
    """_unsafe_view is such an operator, and its schema does not say so."""
    x = empty(8, 6)
    for func, *more in ((torch.ops.aten._unsafe_view.default, [48]), (torch.ops.aten.view.default, [48])):
        assert all(out.untyped_storage()._cdata == x.untyped_storage()._cdata for out in run(func, x, *more))


def test_what_is_written_in_place_is_the_argument_itself(run):
    x, others = empty(8), [empty(8), empty(3)]
    assert all(out is x for out in run(torch.ops.aten.add_.Tensor, x, 1.0))
    assert run(torch.ops.aten._foreach_mul_.Scalar, others, 2.0) in ([None, None], [(), ()])
    run(torch.ops.aten.unsqueeze_.default, x, 0)
    assert x.shape == (1, 1, 8), "what changes a shape in place is done every time"


def test_several_results_and_those_that_are_not_there_come_in_their_order(run):
    grad, x, weight = empty(2, 4, 6, 6), empty(2, 3, 8, 8), empty(4, 3, 3, 3)
    more = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    first, second = run(torch.ops.aten.convolution_backward.default, grad, x, weight, *more)
    assert type(first) is type(second) and first[2] is second[2] is None
    assert [layout(t) for t in first[:2]] == [layout(t) for t in second[:2]]


def test_an_operator_that_fails_fails_again(run):
    for _ in range(2):
        with pytest.raises(RuntimeError):
            run(torch.ops.aten.mm.default, empty(2, 3), empty(4, 5))
