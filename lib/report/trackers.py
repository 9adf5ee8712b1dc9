"""Clients of TensorBoard, Weights & Biases and MLflow behind one shape: made, handed values by step, ended.

None is imported before it is asked for. Offline each writes into the run's folder; only with `online` does one send.
"""

import contextlib
import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

KEYS = (
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_SECONDS = "30"  # for an answer of a server: training waits for its first one


@dataclass(frozen=True)
class Place:
    """What a tracker is made from; `id` is that of the run that an earlier session began, empty in the first one."""

    folder: Path
    project: str
    name: str
    online: bool = False
    id: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """What the hook asks of a client; `id` finds the same run again in a later session. Any method may raise."""

    id: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, completed: bool, values: Mapping[str, float]) -> None: ...


class TensorBoard:
    """Event files, one more for each session, which TensorBoard shows as one run."""

    id = ""

    def __init__(self, place: Place):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(place.folder / "tensorboard"))
        self._step = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._step = max(step, self._step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        self.log(self._step, values)
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; `wandb sync` sends what was written offline, all sessions into the same run."""

    def __init__(self, place: Place):
        import wandb

        if place.online and not secret("WANDB_API_KEY"):
            raise LookupError(_missing("WANDB_API_KEY"))
        if not place.online:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which is sent offline too
        self.id = place.id or uuid.uuid4().hex[:12]
        self._run = wandb.init(
            project=place.project,
            name=place.name,
            id=self.id,
            resume="allow",
            dir=str(place.folder),
            mode="online" if place.online else "offline",
            config=dict(place.settings),
            settings=wandb.Settings(console="off", silent=True, init_timeout=float(_SECONDS)),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if completed else 1)


class MLflow:
    """A run of MLflow: on the server that MLFLOW_TRACKING_URI names, or in a database in the run's folder."""

    def __init__(self, place: Place):
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", _SECONDS)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        if not place.online:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=_address(place))
        experiment = self._client.get_experiment_by_name(place.project)
        artifacts = None if place.online else (place.folder / "mlflow").absolute().as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment(place.project, artifacts)
        self.id = place.id or self._client.create_run(number, run_name=place.name).info.run_id
        self._client.update_run(self.id, status="RUNNING")
        if not place.id:
            params = [Param(name, str(value)[:500]) for name, value in place.settings.items()]
            for start in range(0, len(params), 100):  # the most that a request may have
                self._client.log_batch(self.id, params=params[start : start + 100])
        self._step = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._step, now = max(step, self._step), int(1000 * time.time())
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        self._client.log_batch(self.id, [self._metric(name, value, now, step) for name, value in named.items()])

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        if values:
            self.log(self._step, values)
        self._client.set_terminated(self.id, "FINISHED" if completed else "KILLED")


def _address(place: Place) -> str:
    if not place.online:
        return f"sqlite:///{(place.folder / 'mlflow.db').absolute()}"
    for name in KEYS[2:]:
        secret(name)
    if not (address := secret("MLFLOW_TRACKING_URI")):
        raise LookupError(_missing("MLFLOW_TRACKING_URI"))
    return address


def secret(name: str) -> str:
    """Returns a key from the environment, Kaggle's Secrets or Colab's, and leaves it in the environment for a client.

    Empty where there is none.
    """
    if not os.environ.get(name):
        with contextlib.suppress(Exception):  # no such module but there, and no such secret in many classes of error
            from kaggle_secrets import UserSecretsClient

            os.environ[name] = UserSecretsClient().get_secret(name) or ""
    if not os.environ.get(name):
        with contextlib.suppress(Exception):
            from google.colab import userdata

            os.environ[name] = userdata.get(name) or ""
    return os.environ.get(name, "")


def _missing(name: str) -> str:
    return (
        f"tracking.online needs {name}: add it under Add-ons > Secrets on Kaggle (the key icon on Colab), or set it as "
        "an environment variable"
    )


def without_keys(text: str) -> str:
    """Returns a text, such as a client's error, in which no key stands."""
    for name in KEYS:
        if value := os.environ.get(name):
            text = text.replace(value, f"({name})")
    return text
