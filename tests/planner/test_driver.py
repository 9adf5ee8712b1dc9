"""What a script asks of torch.cuda is answered as on the card, and what needs several cards is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.planner import predict
from lib.planner.limits import NotTraceable


def linear():
    return nn.Linear(64, 64)


def loss(net, device="cuda"):
    return net(torch.ones(8, 64, device=device)).sum()


def test_a_script_that_asks_for_a_gpu_gets_one_of_the_predicted_kind():
    asked = []

    def step(net):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        held = torch.empty(2**20, device=device)
        result = loss(net, torch.device(device, torch.cuda.current_device()))
        ended.record()
        torch.cuda.synchronize()
        asked.append((
            torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.device_count(),
            torch.cuda.memory_allocated() >= 4 * held.numel(), begun.elapsed_time(ended) >= 0,
            torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] > 39 * 2**30 - 1,
        ))  # fmt: skip
        return result

    before = torch.cuda.is_available
    predict(linear, step, "a100-40")
    assert asked == [("A100 40 GB", (8, 0), 1, True, True, True)] * 2
    assert torch.cuda.is_available is before


def test_a_model_may_ask_for_the_card_as_well():
    def made():
        return linear().to("cuda" if torch.cuda.is_available() else "cpu")

    assert predict(made, lambda net: loss(net, 0)) == predict(linear, loss)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.to("cuda:1"), lambda x: x.cuda(1), lambda x: x.to(torch.device("cuda", 2)), lambda x: x.to(1),
        lambda x: torch.cuda.set_device(1), lambda x: x + torch.ones(8, 64, device="cuda:1"),
        lambda x: x + torch.ones(8, 64, device=1),
    ],
)  # fmt: skip
def test_a_second_card_is_refused_with_its_line(use):
    def step(net):
        use(torch.ones(8, 64, device="cuda:0"))
        return loss(net)

    with pytest.raises(NotTraceable, match=r"uses a second card, cuda:\d \(.*test_driver.py, line \d+\)"):
        predict(linear, step)


@pytest.mark.parametrize(
    "wrap, name",
    [
        (nn.DataParallel, "DataParallel"),
        (nn.parallel.DistributedDataParallel, "DistributedDataParallel"),
        (lambda net: torch.distributed.init_process_group("gloo") or net, "init_process_group"),
    ],
)
def test_what_needs_several_cards_is_refused_with_its_line(wrap, name):
    with pytest.raises(NotTraceable, match=rf"{name} \(.*test_driver.py, line \d+\).*give the plain model"):
        predict(lambda: wrap(linear()), loss)


def test_fsdp2_is_refused():
    from torch.distributed.fsdp import fully_shard

    def made():
        net = linear()
        fully_shard(net)
        return net

    with pytest.raises(NotTraceable, match="init_process_group .*fully_shard divides"):
        predict(made, loss)


def test_a_model_that_was_wrapped_before_is_refused_too():
    wrapped = nn.DataParallel(linear())
    with pytest.raises(NotTraceable, match=r"DataParallel \(the model itself\)"):
        predict(lambda: wrapped, loss)


def test_a_sparse_gradient_is_refused():
    with pytest.raises(NotTraceable, match="0 is sparse"):
        predict(lambda: nn.Sequential(nn.Embedding(8, 4, sparse=True)), lambda net: net(torch.zeros(2, 1).long()).sum())


def test_what_is_compiled_is_traced_as_it_is_and_that_is_said():
    def inside(net):
        @torch.compile(dynamic=True)
        def inner(x):
            return x * 1

        return inner(loss(net))

    def in_place():
        net = linear()
        net.compile()
        return net

    plain = predict(linear, loss)
    assert predict(lambda: torch.compile(linear()), loss).peak_bytes == plain.peak_bytes
    for made, step in ((lambda: torch.compile(linear()), loss), (linear, inside), (in_place, loss)):
        assert any("torch.compile saves or adds" in sentence for sentence in predict(made, step).unseen)
    assert not any("torch.compile" in sentence for sentence in plain.unseen)


ATTENTION = torch.nn.attention.SDPBackend


@pytest.mark.parametrize(
    "backends, card, kernel",
    [
        (ATTENTION.MATH, "l4", "math"),
        (ATTENTION.EFFICIENT_ATTENTION, "l4", "efficient"),
        ([ATTENTION.MATH, ATTENTION.EFFICIENT_ATTENTION], "t4", "efficient"),
        (ATTENTION.CUDNN_ATTENTION, "h100", "cudnn"),
    ],
)
def test_the_kernels_that_sdpa_kernel_names_are_taken(backends, card, kernel):
    def step(net):
        q = net(torch.randn(2, 4, 64, 64, device="cuda"))
        with torch.nn.attention.sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, q, q).sum()

    assert set(predict(linear, step, card, precision="fp16").attention) == {kernel}


def test_plain_attention_that_is_asked_for_costs_its_scores():
    def peak(backends):
        def step(net):
            q = net(torch.randn(8, 4, 512, 64, device="cuda"))
            with torch.nn.attention.sdpa_kernel(backends):
                return F.scaled_dot_product_attention(q, q, q).sum()

        return predict(linear, step, "l4", precision="fp16").peak_bytes

    assert peak([ATTENTION.MATH]) - peak([ATTENTION.FLASH_ATTENTION]) > 2 * 8 * 4 * 512 * 512


def test_kernels_of_which_none_can_are_refused_as_the_card_would():
    def step(net):
        q = net(torch.randn(2, 4, 64, 64, device="cuda"))
        with torch.nn.attention.sdpa_kernel(ATTENTION.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, q, q).sum()

    with pytest.raises(NotTraceable, match=r"No attention kernel .*\(flash\).*test_driver.py, line \d+"):
        predict(linear, step, "t4", precision="fp16")
    assert predict(linear, step, "l4", precision="fp16").attention
