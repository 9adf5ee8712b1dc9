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
    answers = []

    def step(net):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        held = torch.empty(2**20, device="cuda" if torch.cuda.is_available() else "cpu")
        result = loss(net, torch.device("cuda", torch.cuda.current_device()))
        ended.record()
        torch.cuda.synchronize()
        answers.append((
            torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.device_count(),
            torch.cuda.memory_allocated() >= 4 * held.numel(), begun.elapsed_time(ended) >= 0,
            torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] > 39 * 2**30 - 1,
        ))  # fmt: skip
        return result

    before = torch.cuda.is_available
    predict(linear, step, "a100-40")
    assert answers == [("A100 40 GB", (8, 0), 1, True, True, True)] * 2
    assert torch.cuda.is_available is before
    made = lambda: linear().to("cuda" if torch.cuda.is_available() else "cpu")  # noqa: E731
    assert predict(made, lambda net: loss(net, 0)) == predict(linear, loss), "a model may ask for the card as well"


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


def sharded(net):
    from torch.distributed.fsdp import fully_shard

    fully_shard(net)
    return net


WRAPPED = nn.DataParallel(linear())


@pytest.mark.parametrize(
    "wrap, sentence",
    [
        (nn.DataParallel, r"DataParallel \(.*test_driver.py, line \d+\).*give the plain model"),
        (nn.parallel.DistributedDataParallel, r"DistributedDataParallel \(.*test_driver.py, line \d+\)"),
        (lambda net: torch.distributed.init_process_group("gloo") or net, r"init_process_group \(.*test_driver.py"),
        (sharded, "init_process_group .*fully_shard divides"),
        (lambda net: WRAPPED, r"DataParallel \(the model itself\)"),
        (lambda net: nn.Sequential(nn.Embedding(8, 4, sparse=True)), "0 is sparse"),
    ],
)
def test_what_needs_several_cards_or_is_sparse_is_refused(wrap, sentence):
    with pytest.raises(NotTraceable, match=sentence):
        predict(lambda: wrap(linear()), loss)


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
        (ATTENTION.FLASH_ATTENTION, "l4", "flash"),
        (ATTENTION.FLASH_ATTENTION, "t4", ""),
    ],
)
def test_the_kernels_that_sdpa_kernel_names_are_taken_or_refused_as_the_card_would(backends, card, kernel):
    def step(net):
        q = net(torch.randn(2, 4, 64, 64, device="cuda"))
        with torch.nn.attention.sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, q, q).sum()

    if kernel:
        assert set(predict(linear, step, card, precision="fp16").attention) == {kernel}
        return
    with pytest.raises(NotTraceable, match=r"No attention kernel .*\(flash\).*test_driver.py, line \d+"):
        predict(linear, step, card, precision="fp16")
