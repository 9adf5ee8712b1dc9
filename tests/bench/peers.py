"""The loops of other training tools around the same model, optimizer and batches, for bench_overhead.

Each is as lean as its documentation allows: CPU, no checkpoint, no progress bar, no evaluation, a loss logged every
`log_every_steps`. Choices favour the peer: the user's own code sets the learning rate without a scheduler object, and
touches the log only in logged steps. None does what ours does in that time (sampler, deadline, memory guard).
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lib.config import Config
from lib.task import Task
from lib.training import optimization
from lib.training.order import Order
from lib.training.state import new_state

Loop = Callable[[Task, Config], None]


def accelerate_loop(task: Task, config: Config) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    state = new_state(task, config)
    model, optimizer, loader = accelerator.prepare(
        state.model.train(), state.optimizer, loader_of(task, config)
    )
    for step, batch in enumerate(loader):
        optimization.set_learning_rate(optimizer, optimization.learning_rate(config, step))
        loss = _mean_loss(task, config, model, batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), config.training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % config.training.log_every_steps == 0:
            accelerator.print(step + 1, loss.item())


def transformers_loop(task: Task, config: Config) -> None:
    from transformers import Trainer, TrainingArguments

    class Timed(Trainer):
        def get_train_dataloader(self):
            return loader_of(task, config)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return _mean_loss(task, config, model, inputs)

    state = new_state(task, config)
    # Trainer takes no learning rate without a scheduler
    schedule = LambdaLR(
        state.optimizer, lambda step: optimization.learning_rate(config, step) / config.optimizer.lr
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(  # the filter would be a check in every step that the bare loop lacks as well
            output_dir=folder, max_steps=config.training.max_steps, max_grad_norm=config.training.clip_norm,
            logging_steps=config.training.log_every_steps, logging_nan_inf_filter=False, use_cpu=True,
            save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        Timed(state.model, arguments, optimizers=(state.optimizer, schedule)).train()


def lightning_loop(task: Task, config: Config) -> None:
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    state = new_state(task, config)

    class Timed(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = state.model

        def configure_optimizers(self):
            return state.optimizer

        def training_step(self, batch, step):
            optimization.set_learning_rate(
                state.optimizer, optimization.learning_rate(config, step)
            )
            loss = _mean_loss(task, config, self.model, batch)
            if (step + 1) % config.training.log_every_steps == 0:
                self.log("loss", loss)
            return loss

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        every = config.training.log_every_steps
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, gradient_clip_val=config.training.clip_norm,
            logger=CSVLogger(folder, flush_logs_every_n_steps=every), log_every_n_steps=every,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(Timed(), loader_of(task, config))


def ignite_loop(task: Task, config: Config) -> None:
    from ignite.engine import Engine, Events

    state = new_state(task, config)
    model = state.model.train()
    optimizer = state.optimizer

    def update(engine, batch):
        optimization.set_learning_rate(
            optimizer, optimization.learning_rate(config, engine.state.iteration - 1)
        )
        loss = _mean_loss(task, config, model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    engine = Engine(update)
    logged = Events.ITERATION_COMPLETED(every=config.training.log_every_steps)
    engine.add_event_handler(
        logged, lambda engine: print(engine.state.iteration, engine.state.output.item())
    )
    engine.run(loader_of(task, config), max_epochs=1)


@dataclass(frozen=True)
class Peer:
    package: str
    modules: tuple[str, ...]
    loop: Loop

    @property
    def is_installed(self) -> bool:
        return all(importlib.util.find_spec(module) for module in self.modules)

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def __call__(self, task: Task, config: Config) -> None:
        """Trains; what the tool prints or warns of is not shown."""
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.loop(task, config)


PEERS = {
    "Accelerate": Peer("accelerate", ("accelerate",), accelerate_loop),
    "Hugging Face Trainer": Peer("transformers", ("transformers", "accelerate"), transformers_loop),
    "Lightning": Peer("lightning", ("lightning",), lightning_loop),
    "Ignite": Peer("pytorch-ignite", ("ignite",), ignite_loop),
}


def loader_of(task: Task, config: Config) -> DataLoader:
    """Returns torch's own loader with the samples of `data.train_batches` in their order."""
    train_set = task.datasets()["train"]
    size = config.training.effective_batch
    order = Order(len(train_set), config.seed, size, 1)
    samples = [
        index for step in range(config.training.max_steps) for index in order.indices(step, 0)
    ]
    return DataLoader(
        train_set, size, sampler=samples, collate_fn=partial(task.collate, generator=None)
    )


def _mean_loss(task: Task, config: Config, model: nn.Module, batch: dict):
    sums, _ = task.loss(model, batch)
    return sums["squared"] / config.training.effective_batch
