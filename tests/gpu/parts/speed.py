"""Speed on the card: tokens a second, MFU and waiting, beside the same model in a bare loop and in SFTTrainer.

A row below its goal carries a profile: the kernels that take most time, their launches a step, and the share of the
time in which the card computes nothing.
"""

import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.config import Config, with_changes
from lib.machine import memory
from lib.planner.card import card_of_gpu
from lib.prepared import Run
from lib.report.metrics import METRICS, read
from lib.report.progress import Plain
from lib.task import Batch, load_config, load_task
from lib.training import data, loop, optimization
from lib.training.order import Order
from lib.training.precision import allow_tf32, autocast
from lib.training.session import Session
from lib.training.state import new_state
from tests.conftest import ROOT
from tests.gpu.parts.bits import toy
from tests.gpu.parts.shared import LENGTH, chat_changes, conversations
from trainbook.launch import prepare

MFU = 0.40
WAITING = 0.02
BESIDE = 1.0  # goals: at least, at most, of SFTTrainer's steps a second at least
STEPS = 30
WARM_UP = 8
PROFILED = 5
CHAT = "Qwen2.5-1.5B"
ROWS = (
    "graphmer",
    "chat LoRA",
    "chat LoRA in SFTTrainer",
    "graphmer compiled",
    "AdamW",
    "channels last",
)


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Times a row; `tiny` times the toy task in both loops, with its profile."""
    if tiny:
        figures = timed(prepare(toy(folder, "toy", training__max_steps=STEPS)), folder)
        return {
            **figures,
            "ok": figures["bare_steps_per_second"] > 0 and bool(figures["profile"]["kernels"]),
        }
    if row == "AdamW":
        return optimizers()
    if row == "channels last":
        return layouts()
    if row == "chat LoRA in SFTTrainer":
        return in_sft_trainer(folder)
    config = chat(folder) if row == "chat LoRA" else graphmer(row == "graphmer compiled")
    return timed(prepare(config), folder)


def graphmer(compiled: bool) -> Config:
    changes = {
        "workload.packages": [], "training.max_steps": STEPS, "training.precision": "bf16", "training.micro_batch": 256,
        "training.effective_batch": 256, "training.micro_batch_slots": 1, "training.compile": compiled,
        "device.processes": 1, "data.num_workers": 8, "output_dir": "runs",
    }  # fmt: skip
    return load_config(ROOT / "configs" / "graphmer.yaml", changes)


def chat(folder: Path) -> Config:
    changes = {
        **chat_changes(CHAT, folder, 8), "training.precision": "bf16", "workload.nf4": False,
        "training.gradient_checkpointing": 0, "training.max_steps": STEPS, "training.epochs": 0,
        "data.num_workers": 4, "training.micro_batch_slots": 1, "training.effective_batch": 8,
    }  # fmt: skip
    return load_config(ROOT / "configs" / "chat.yaml", changes)


def timed(run: Run, folder: Path) -> dict[str, Any]:
    """Times our loop and a bare one around the same task; adds MFU on a card, and a profile where a goal is missed."""
    changes = {
        "checkpoint.keep_last": 0,
        "checkpoint.keep_best": 0,
        "training.evaluate_every_steps": 0,
    }
    config = with_changes(run.config, {**changes, "training.log_every_steps": STEPS // 3})
    (folder / "timed").mkdir()
    outcome = loop.train(run.task, config, folder / "timed", Session(None, 0, 0), Plain())
    last = [row for row in read(folder / "timed" / METRICS) if row["split"] == "train"][-1]
    speed = (
        float(last["samples_per_second"]) / config.training.effective_batch
    )  # of the last third alone
    figures: dict[str, Any] = {
        "precision": outcome.state.precision, "micro_batch": outcome.state.micro_batch,
        "steps_per_second": round(speed, 4), "waiting": float(last["data_wait_share"]),
        "peak_bytes": outcome.peak_bytes,
    }  # fmt: skip
    del outcome
    batches = first_batches(config, STEPS)
    tokens = tokens_of(batches[0])
    figures |= {"tokens_a_step": tokens, "tokens_per_second": round(tokens * speed, 1)}
    step = bare_step(with_changes(config, {"training.compile": False}))
    figures["bare_steps_per_second"] = round(bare_speed(step, batches), 4)
    figures["ratio_to_bare"] = round(
        figures["steps_per_second"] / figures["bare_steps_per_second"], 4
    )
    flops = flops_of(step, batches[0])
    figures["flops_a_step"] = flops
    if figures["waiting"] <= WAITING:
        missed = []
    else:
        missed = [f"{figures['waiting']:.1%} of the time waits for data"]
    if torch.cuda.is_available():
        most = card_of_gpu(0).flops("bf16")
        figures["mfu"] = round(flops * speed / most, 4)
        if figures["mfu"] < MFU:
            missed.append(f"MFU is {figures['mfu']:.1%}")
    if missed or not torch.cuda.is_available():
        figures["profile"] = profile(step, batches[:PROFILED])
    return {"ok": not missed, **({"missed": "; ".join(missed)} if missed else {}), **figures}


def first_batches(config: Config, count: int) -> list[Batch]:
    """Returns whole effective batches of training, in the order in which the loop has them."""
    task = load_task(config)
    train = data.subset(task.datasets()["train"], config.data.subset_ratio, config.seed)
    order = Order.of(train, config)
    return [
        slots[0] for _, slots in data.train_batches(task, train, order, range(count), config.data)
    ]


def tokens_of(batch: Batch) -> int:
    """Counts the tokens of a batch: the numbers of its largest whole-numbered input; else its samples."""
    numbers = [v.numel() for v in batch.values() if not v.is_floating_point() and v.dim() > 1]
    return max(numbers, default=data.size_of(batch))


def bare_step(config: Config) -> Callable[[Batch], None]:
    """Returns what anybody writes by hand: forward, backward, clipping, the optimizer, of one whole batch."""
    task = load_task(config)
    state = new_state(task, config)
    model = state.model.train()
    optimizer = state.optimizer
    optimization.set_learning_rate(optimizer, 1e-5)
    allow_tf32(state.precision, state.device)

    def step(batch: Batch) -> None:
        batch = data.to_device(batch, state.device)
        counts = task.count(batch)
        with autocast(state.precision, state.device):
            sums, _ = task.loss(model, batch)
        torch.stack(
            [value.float() / counts[term] for term, value in sums.items() if counts[term]]
        ).sum().backward()
        nn.utils.clip_grad_norm_(state.parameters, config.training.clip_norm or 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def bare_speed(step: Callable[[Batch], None], batches: Sequence[Batch]) -> float:
    """Returns steps a second after the warm-up."""
    for batch in batches[:WARM_UP]:
        step(batch)
    waited()
    begin = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(batch)
    waited()
    return (len(batches) - WARM_UP) / (time.perf_counter() - begin)


def waited() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def flops_of(step: Callable[[Batch], None], batch: Batch) -> int:
    """Counts the floating-point operations of matrix products and attention in a step, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step(batch)
    return counter.get_total_flops()


def profile(step: Callable[[Batch], None], batches: Sequence[Batch]) -> dict[str, Any]:
    """Returns the 15 kernels that take most time (CPU: operators), launches a step, the share without a kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    is_cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    begin = time.perf_counter()
    with profiled(activities=activities) as recorded:
        for batch in batches:
            step(batch)
        waited()
    seconds = time.perf_counter() - begin
    times = {event.key: kernel_seconds(event, is_cuda) for event in recorded.key_averages()}
    longest = sorted(times.items(), key=lambda pair: -pair[1])[:15]
    launches = sum(event.count for event in recorded.key_averages() if "LaunchKernel" in event.key)
    return {
        "kernels": [[name[:80], round(spent / len(batches), 6)] for name, spent in longest],
        "launches_a_step": launches / len(batches),
        "share_without_a_kernel": round(1 - min(1.0, sum(times.values()) / seconds), 4),
    }


def kernel_seconds(event: Any, is_cuda: bool) -> float:
    """Returns the seconds that a kernel computed on the card, or an operator on the CPU, without its callees."""
    if not is_cuda:
        return event.self_cpu_time_total / 1e6
    from torch.autograd import DeviceType

    if event.device_type == DeviceType.CUDA:
        return event.self_device_time_total / 1e6
    return 0.0


def in_sft_trainer(folder: Path) -> dict[str, Any]:
    """Trains the same base, adapter, rows and batch in TRL's SFTTrainer, and compares steps a second with ours."""
    if not importlib.util.find_spec("trl"):
        return {"ok": True, "left_out": "trl is not installed: make gpu-wheels"}
    ours = timed(prepare(chat(folder)), folder)["steps_per_second"]
    theirs = sft_steps_per_second(folder / CHAT, folder)
    if ours >= BESIDE * theirs:
        missed = {}
    else:
        missed = {"missed": f"{ours / theirs:.2f} of SFTTrainer's steps a second"}
    return {"ok": not missed, **missed, "ours": ours, "sft": round(theirs, 4)}


def sft_steps_per_second(base: Path, folder: Path, length: int = LENGTH) -> float:
    """Trains adapters on the same conversations with SFTTrainer; returns steps a second after the warm-up."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    lines = (conversations(folder / "rows") / "rows.jsonl").read_text("utf-8").splitlines()
    messages = [json.dumps(messages_of(json.loads(line))) for line in lines]
    (folder / "messages.jsonl").write_text("\n".join(messages * STEPS), "utf-8")
    rows = Dataset.from_json(str(folder / "messages.jsonl"), cache_dir=str(folder / "datasets"))
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).to(memory.device())
    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            waited()
            stamps.append(time.perf_counter())

    options: Mapping[str, Any] = {
        "per_device_train_batch_size": 8, "max_steps": STEPS, "bf16": True, "gradient_checkpointing": False,
        "max_length": length, "report_to": "none", "save_strategy": "no", "logging_steps": STEPS, "disable_tqdm": True,
        "dataloader_num_workers": 4, "use_cpu": not torch.cuda.is_available(),
    }  # fmt: skip
    trainer = SFTTrainer(
        model=model, args=SFTConfig(output_dir=str(folder / "sft"), **options),
        train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"), callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    return (len(stamps) - 1 - WARM_UP) / (stamps[-1] - stamps[WARM_UP])


def messages_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Returns a row in the layout that SFTTrainer reads."""
    roles = {"user": row["prompt"], "assistant": row["answer"]}
    return {"messages": [{"role": role, "content": content} for role, content in roles.items()]}


def optimizers() -> dict[str, Any]:
    """Times AdamW as fused and as foreach kernels, on the parameters of the large encoder."""
    config = graphmer(False)
    seconds = {}
    for name in ("fused", "foreach"):
        model = load_task(config).model().cuda()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **{name: True})
        seconds[name] = repeated(optimizer.step)
    return {
        "ok": True,
        "seconds": seconds,
        "fused_of_foreach": round(seconds["fused"] / seconds["foreach"], 3),
    }


def layouts() -> dict[str, Any]:
    """Times forward and backward of the glacier network in fp16, in both memory layouts."""
    config = load_config(ROOT / "configs" / "glacier_finetune.yaml", {"data.dir": "embedded"})
    task = load_task(config)
    seconds = {}
    for name, layout in (
        ("contiguous", torch.contiguous_format),
        ("channels last", torch.channels_last),
    ):
        model = task.model().cuda().train().to(memory_format=layout)
        example = task.example_batch(16, torch.device("cuda"))
        batch = {k: v.to(memory_format=layout) if v.dim() == 4 else v for k, v in example.items()}

        def step(model: nn.Module = model, batch: Batch = batch) -> None:
            with torch.autocast("cuda", torch.float16):
                sums, _ = task.loss(model, batch)
            torch.stack([value.float() for value in sums.values()]).sum().backward()

        seconds[name] = repeated(step)
    return {
        "ok": True,
        "seconds": seconds,
        "ratio": round(seconds["channels last"] / seconds["contiguous"], 3),
    }


def repeated(step: Callable[[], Any], times: int = 20) -> float:
    for _ in range(3):
        step()
    waited()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    waited()
    return (time.perf_counter() - begin) / times
