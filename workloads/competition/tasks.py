"""The task for each form of files: the model of an example, and how its samples are read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput, printable
from lib.task import Batch
from trainbook.new.examples import audio, images, segmentation, tabular, text
from trainbook.supervised import columns, encoded, pictured, pictures, prediction, sounds
from trainbook.supervised.names import listed
from trainbook.supervised.notes import note
from trainbook.supervised.samples import split
from trainbook.supervised.task import Supervised
from workloads.competition import files, runs
from workloads.competition.entry import Entry
from workloads.competition.wording import MASKS, metric_of

_LOOKED_AT = 100  # training files, whose form is all files'
_LARGEST = 224  # pixels a side, if the settings name none
_SIDE = 64  # of pictures that no file tells, in a plan without data
_MOST_SECONDS = 30.0
_MOST_RATE = 32_000
_STEP = 8  # pixels: networks halve a side three times


def chosen(block: Any) -> type[Entry]:
    """Returns the task for the files that the settings name. Raises BadInput for other files."""
    form = files.form_of(block.folder)
    if block.folder and form is None:
        raise BadInput(
            f"workload.folder is {printable(block.folder)}, which names neither pictures nor sounds. Write "
            "their folder and suffix, as train_images/*.png."
        )
    is_mask = metric_of(block.metric) in MASKS
    if is_mask and (form is None or form.word != "picture"):
        raise BadInput(
            f"workload.metric is {block.metric}, which judges masks of pictures. Name their folder as "
            "workload.folder."
        )
    if is_mask:
        return Masks
    if form is not None:
        return Pictures if form.word == "picture" else Sounds
    return Words if block.text else Columns


def _some(samples: Sequence[Any]) -> list[Path]:
    """Returns the files of at most 100 samples, evenly spaced; those of an example are none."""
    step = max(1, len(samples) // _LOOKED_AT)
    firsts = [sample[0] for sample in samples[::step]]
    return [first for first in firsts if isinstance(first, Path)]


class Files(Entry):
    """Files with a target each, by a row of the table."""

    def __init__(self, config: Any, source: Path | Sequence[Path] | None = None):
        self._group_of: dict[str, Any] = {}
        super().__init__(config, source)

    def read(self, source: Path) -> Any:
        block = self.config.workload
        rows = files.training_rows(source, block)
        pairs = files.named_files(source, block.folder, rows, block.key)
        if block.group:
            self._group_of = {str(path): row[block.group] for path, row in pairs}
        return split([(path, self.target_of_file(path, row)) for path, row in pairs])

    def target_of_file(self, path: Path, row: Mapping[str, Any]) -> Any:
        return self.target(row)

    def read_new(self, source: Path) -> list[Any]:
        return [(path, None) for path in files.new_files(source, self.config.workload.test)]

    def group(self, sample: Any) -> Any:
        return self._group_of.get(str(sample[0]))


class Pictures(Files, images.Images):  # type: ignore[misc]  # settings of the block
    """The class, labels or number of a picture."""

    like = images.Settings

    def form(self, samples: Any) -> Mapping[str, Any]:
        if self.config.workload.size or pictured.size(self):
            return {}
        return _size(samples)

    def example(self) -> Any:
        self.learned()
        side = self.side(_SIDE)
        return Image.new("RGB", (side, side)), self.empty_target()


def _size(samples: Sequence[Any]) -> dict[str, Any]:
    """Returns the side that most pictures have at most, in whole steps."""
    sides = [max(pictures.opened(path).size) for path in _some(samples)]
    if not sides:
        return {}
    middle = int(np.median(sides))
    return {"size": min(_LARGEST, -(-middle // _STEP) * _STEP)}


class Sounds(Files, audio.Audio):  # type: ignore[misc]  # settings of the block
    """The class or labels of a sound."""

    like = audio.Settings

    def form(self, samples: Any) -> Mapping[str, Any]:
        paths = _some(samples)
        if not paths:
            return {}
        facts = [sounds.facts(path) for path in paths]
        rate = Counter(rate for rate, _ in facts).most_common(1)[0][0]
        seconds = float(np.quantile([seconds for _, seconds in facts], 0.95))
        return {"rate": min(rate, _MOST_RATE), "seconds": round(min(seconds, _MOST_SECONDS), 2)}

    def example(self) -> Any:
        self.learned()
        return np.zeros(1, np.float32), self.empty_target()


class Masks(Files, segmentation.Segmentation):  # type: ignore[misc]  # settings of the block
    """The pixels of one class, as run lengths."""

    like = segmentation.Settings

    def form(self, samples: Any) -> Mapping[str, Any]:
        if self.config.workload.size or pictured.size(self):
            return {}
        return _size(samples)

    def target_of_file(self, path: Path, row: Mapping[str, Any]) -> Any:
        """Returns the height, width and run lengths of a picture's mask. Raises BadInput for others."""
        width, height = pictures.opened(path).size
        cell = row[self.config.workload.target[0]]
        marked = "" if cell is None or str(cell).strip() in ("", "nan", "-1") else str(cell).strip()
        if why := runs.fault(marked, height * width):
            place = getattr(row, "place", "a row")
            raise BadInput(f"{place}, {printable(path.name)} of {width} x {height} pixels: {why}")
        return f"{height} {width} {marked}"

    def example(self) -> Any:
        self.learned()
        side = self.side(_SIDE)
        return Image.new("RGB", (side, side)), f"{side} {side} "

    def batch(self, samples: list[Any], training: bool) -> Batch:
        drawn = [(picture, _drawn(target)) for picture, target in samples]
        return super().batch(drawn, training)

    def answers(self, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
        total, _ = prediction.summed(self, models, samples)
        shares = (total[..., 1:].sum(-1) / len(models)).float().cpu()
        name = self.config.workload.target[0]
        rows: list[Mapping[str, Any]] = []
        for share, (picture, _) in zip(shares, samples, strict=True):
            width, height = pictures.opened(picture).size
            rows.append({name: runs.runs_of(_scaled(share, height, width) > 0.5)})
        return rows

    def cell_check(self) -> Callable[[str, str], str] | None:
        source = self.source or Path()
        index = files.index_of(source, files.new_files(source, self.config.workload.test))

        def refusal(name: str, cell: str) -> str:
            file = files.named(index, name.strip())
            if file is None:
                return runs.fault(cell)
            width, height = pictures.opened(file).size
            return runs.fault(cell, height * width)

        return refusal


def _drawn(target: str) -> Image.Image:
    """Returns a mask as an image."""
    height, width, *marked = target.split(" ", 2)
    return Image.fromarray(runs.mask_of(" ".join(marked), int(height), int(width)))


def _scaled(share: Tensor, height: int, width: int) -> np.ndarray:
    """Returns (height, width) probabilities of one (size, size)."""
    scaled = F.interpolate(share[None, None], (height, width), mode="bilinear", align_corners=False)
    return scaled[0, 0].numpy()


class Words(Entry, text.Text):  # type: ignore[misc]  # settings of the block
    """The classes or labels of a text in a table."""

    like = text.Settings
    rate = 10 / 3

    def model(self) -> nn.Module:
        if not self.names:
            raise BadInput("There are no classes to learn. Look at workload.target.")
        return super().model()

    def read(self, source: Path) -> Any:
        rows = files.training_rows(source, self.config.workload)
        test = self.config.workload.test
        if test:
            others = files.rows_to_predict(
                files.place_of(source, test, "test"), self.config.workload
            )
            encoded.note_repeated(
                [self.joined(row) for row in rows], [self.joined(row) for row in others]
            )
        return split([self.sample(row, self.target(row)) for row in rows])

    def read_new(self, source: Path) -> list[Any]:
        block = self.config.workload
        rows = files.rows_to_predict(_table(source, block), block)
        return [self.sample(row, None) for row in rows]

    def sample(self, row: Mapping[str, Any], target: Any) -> tuple[Any, str, Any]:
        name = self.config.workload.group
        return (row.get(name) if name else None), self.joined(row), target

    def joined(self, row: Mapping[str, Any]) -> str:
        """Returns the text of a row, of several columns one below the other."""
        cells = [row.get(name) for name in self.config.workload.text]
        return "\n".join("" if cell is None else str(cell) for cell in cells)

    def group(self, sample: Any) -> Any:
        return sample[0]

    def example(self) -> Any:
        return None, "word " * self.settings.length, self.empty_target()

    def batch(self, samples: list[Any], training: bool) -> Batch:
        _, texts, labels = zip(*samples, strict=True)
        made: dict[str, Any] = {**self.inputs(texts), "texts": texts}
        return {**made, "labels": torch.tensor(labels)}


def _table(source: Path, block: Any) -> Path:
    """Returns the table to predict: a file, or the one of the settings in a folder."""
    return source if source.is_file() else files.place_of(source, block.test, "test")


class Columns(Entry, tabular.Tabular):  # type: ignore[misc]  # settings of the block
    """A number, a class or labels of a row of a table."""

    like = tabular.Settings
    rate = 20 / 3

    def read(self, source: Path) -> Any:
        block = self.config.workload
        rows = files.training_rows(source, block)
        left_out = {*block.target, block.key}
        if block.test:
            others = files.rows_to_predict(files.place_of(source, block.test, "test"), block)
            lacking = [name for name in rows[0] if others and name not in others[0]]
            unused = [name for name in lacking if name not in left_out]
            if unused:
                note(f"Columns that {block.test} lacks, which are not used: {listed(unused)}.")
            left_out |= {*lacking} - {block.group}
            known = [name for name in rows[0] if name not in left_out]
            encoded.note_repeated(_cells(rows, known), _cells(others, known))
        names = [name for name in rows[0] if name not in left_out]
        cells = [{name: row[name] for name in names} for row in rows]
        first = [row[block.target[0]] for row in rows]
        encoded.note_leaks(cells, first, [row[block.key] for row in rows])
        return split([(some, self.target(row)) for some, row in zip(cells, rows, strict=True)])

    def read_new(self, source: Path) -> list[Any]:
        block = self.config.workload
        names = {block.key, *block.target}
        rows = files.rows_to_predict(_table(source, block), block)
        return [({name: row[name] for name in row if name not in names}, None) for row in rows]

    def group(self, sample: Any) -> Any:
        return sample[0].get(self.config.workload.group)

    def learn(self, samples: Any) -> Mapping[str, Any]:
        block = self.config.workload
        cells = [row for row, _ in samples]
        left_out = {block.group: "rows of one value stay together"} if block.group else {}
        kinds = encoded.learned(cells, block.words, left_out)
        made = encoded.rows(kinds, cells)
        values = {"encoded": kinds, **columns.learned(made, encoded.words(kinds))}
        return {**values, "target": (0.0, 1.0), **self.scales(samples)}

    def example(self) -> Any:
        names = self.learned().get("encoded", ("a column",))
        return dict.fromkeys(names), self.empty_target()

    def batch(self, samples: list[Any], training: bool) -> Batch:
        rows, labels = zip(*samples, strict=True)
        learned = self.learned()
        tensors = columns.tensors(learned, encoded.rows(learned["encoded"], rows))
        return {**tensors, "labels": torch.tensor(labels)}

    def describe_data(self) -> str:
        about = self.with_predicted(Supervised.describe_data(self))
        return f"{about}\n{encoded.described(self.learned()['encoded'])}"


def _cells(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    return [[row.get(name) for name in names] for row in rows]
