"""Facts of the platforms that the code uses, and their cards; docs/facts.py has those that only the documents print.

Facts change. Each one stands once, with its source and the month in which it was checked. What the machine can tell
(free disk, memory, CPUs) is read at run time instead.
"""

import json
from dataclasses import dataclass
from pathlib import Path

GB = 10**9
_CHECKED = "2026-10"


@dataclass(frozen=True)
class Fact:
    """One number about a platform: `checked` is the month in which `source` said so."""

    value: float | str
    unit: str
    source: str
    checked: str = _CHECKED


KAGGLE_DOCS = "kaggle.com/docs/notebooks"
MEASURED = "measured reports, 2026-09"
SURVEY = "the project's survey; primary source not noted"

FACTS: dict[str, Fact] = {
    "kaggle_run_minutes": Fact(690, "minutes a run may use", "own choice: a killed session may lose its output"),
    "kaggle_gpu_quota_hours": Fact(30, "hours a week, sometimes more; T4 x2 counts once", "docs, account quota API"),
    "kaggle_gpus": Fact(2, "T4 cards; a single one is not offered", "kaggle-cli #1198"),
    "kaggle_machine_shape": Fact("NvidiaTeslaT4", "machine_shape of kernel-metadata.json", "kaggle-cli #1198"),
    "kaggle_t4_memory_mib": Fact(14_911, "MiB of one T4 as torch sees it", MEASURED),
    "kaggle_output_bytes": Fact(20 * GB, "bytes below /kaggle/working", KAGGLE_DOCS),
    "kaggle_output_files": Fact(500, "files, a soft budget: staff deny a cap", "product-feedback 181143, 420538"),
    "kaggle_notebook_bytes": Fact(1_000_000, "bytes of an .ipynb that Kaggle has refused", SURVEY),
    "kaggle_dataset_bytes": Fact(200 * GB, "bytes of a data set", SURVEY),
    "kaggle_dataset_files": Fact(50, "top-level files of a data set", SURVEY),
    "colab_session_minutes": Fact(720, "minutes at most; the idle limit is unpublished", SURVEY),
    "colab_drive_bytes": Fact(15 * GB, "bytes of a free Drive", SURVEY),
}


@dataclass(frozen=True)
class Card:
    """A GPU: GiB that torch sees (newer drivers leave less: the lower figure), GB/s, TFLOP/s; None: not supported.

    The fp16 of GeForce is that of products that accumulate in fp32, as torch's do.
    """

    name: str
    capability: tuple[int, int]
    memory_gib: float
    bandwidth_gb_s: float
    fp16_tflops: float
    fp16_sustained_tflops: float | None
    bf16_tflops: float | None
    fp32_tflops: float
    source: str = SURVEY
    checked: str = _CHECKED  # or the month of the edition of a data sheet
    device: str = ""  # pattern of what torch calls it, behind the words NVIDIA, Tesla and GeForce
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capability", tuple(self.capability))  # a list in JSON


CARDS = {key: Card(**row) for key, row in json.loads(Path(__file__).with_name("cards.json").read_text("utf-8")).items()}
