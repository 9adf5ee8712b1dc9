"""Features of the places in a picture, by a frozen published encoder: computed once a picture, kept by content."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lib.errors import BadInput, printable
from lib.machine import memory
from lib.report.progress import counted
from trainbook import published
from workloads.vqa import pictures

_CACHED = 2**29  # bytes of features that a process keeps
_WITHOUT = "convolutions from scratch"
FACTS = {"title": str, "sha256": str, "size": int, "places": int, "channels": int}


def facts_of(encoder: published.Encoder) -> dict[str, Any]:
    """Returns what a run keeps of its encoder: title, hash, side of a picture, and the shape of its features."""
    device = next(encoder.parameters()).device
    with torch.no_grad():
        x = torch.zeros(1, 3, encoder.size, encoder.size, device=device)
        last = encoder.stages(x)[-1]
    return {
        "title": str(encoder.facts["config"]["title"]),
        "sha256": encoder.sha256,
        "size": encoder.size,
        "places": last[0, 0].numel(),
        "channels": last.shape[1],
    }


def chosen(name: str, has_pictures: bool) -> dict[str, Any]:
    """Returns the facts on the encoder that `name` or this machine has; {} for none, and for drawn shapes.

    Raises BadInput for a name without an encoder.
    """
    encoder = published.encoder(name, _WITHOUT) if has_pictures or name else None
    return facts_of(encoder) if encoder else {}


def about(name: str, facts: Mapping[str, Any], has_pictures: bool) -> str:
    """Returns a line on the encoder of a run, or on what one would give; "" where drawn shapes need none."""
    if not has_pictures and not facts:
        return ""
    if not facts and name == published.NONE:
        return f"No encoder (workload.image.encoder: none): pictures are read by {_WITHOUT}."
    if not facts:
        return published.advice(_WITHOUT)
    try:
        encoder = _loaded(name, facts["sha256"])
    except BadInput:
        return f"Encoder: {printable(facts['title'])}, which is not at hand: known pictures alone."
    return encoder.about


@functools.cache
def _loaded(name: str, sha256: str) -> published.Encoder:
    """Loads the encoder that a run began with. Raises BadInput if another one, or none, is at hand."""
    for each in dict.fromkeys((name, "")):
        encoder = published.encoder(each, _WITHOUT)
        if encoder is not None and encoder.sha256 == sha256:
            return encoder.eval().requires_grad_(False)
    raise BadInput(
        f"This run began with features of the encoder with sha256 {sha256}, which is not at hand. "
        "Mount or install exactly this one, or train a new run."
    )


class Places:
    """Reads the features of pictures by an encoder of `facts_of`."""

    def __init__(self, name: str, facts: Mapping[str, Any]):
        self.name = name
        self.facts = facts
        size = 2 * facts["places"] * facts["channels"]  # bytes, in fp16
        self._kept = functools.lru_cache(max(1, _CACHED // size))(self._read)

    def batch(self, records: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Returns (B, places, channels) in fp16, and (B) which record has each picture first. Raises BadInput."""
        first = dict[str, int]()
        number = [first.setdefault(record.picture, n) for n, record in enumerate(records)]
        features = [self._kept(records[n].image) for n in number]
        return torch.stack(features), torch.tensor(number)

    def prepare(self, records: Sequence[Any]) -> None:
        """Computes what is not on disk yet, and shows the progress. Raises BadInput without the encoder."""
        images = sorted({record.image for record in records})
        for image in counted(images, "Encoding pictures"):
            self._kept(image)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "facts": self.facts}  # a worker reads from disk

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["name"], state["facts"])  # type: ignore[misc]

    def _read(self, image: str) -> Tensor:
        size = self.facts["size"]
        decoded = torch.tensor(pictures.picture(image, size=size)).permute(2, 0, 1)
        what = f"places of {size} x {size}"
        features = published.kept(self.facts["sha256"], what, decoded[None], self._computed)
        return features[0].half()

    def _computed(self, picture: Tensor) -> Tensor:
        """(1, 3, H, W) uint8 -> (1, places, channels)"""
        encoder = _loaded(self.name, self.facts["sha256"])
        device = torch.device("cpu")
        if torch.utils.data.get_worker_info() is None:  # a worker must not touch the GPU
            device = memory.device()
        encoder.to(device)
        with torch.no_grad():
            maps = encoder.stages(encoder.scaled(picture.to(device) / 255))
        return maps[-1].flatten(2).transpose(1, 2)
