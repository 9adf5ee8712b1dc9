"""Facts of the platforms that the code uses, and their cards; docs/facts.py has those that only the documents print.

Facts change. Each one stands once, with its source and the month in which it was checked. What the machine can tell
(free disk, memory, CPUs) is read at run time instead.
"""

from dataclasses import dataclass

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
    "kaggle_host": Fact(
        "www.kaggle.com",
        "a name that is not resolved in a session whose internet is off",
        "reports of pip's 'Temporary failure in name resolution'; not measured",
    ),
    "kaggle_notebook_bytes": Fact(1_000_000, "bytes of an .ipynb that Kaggle has refused", SURVEY),
    "kaggle_dataset_bytes": Fact(200 * GB, "bytes of a data set", SURVEY),
    "kaggle_dataset_files": Fact(50, "top-level files of a data set", SURVEY),
    "colab_session_minutes": Fact(720, "minutes at most; the idle limit is unpublished", SURVEY),
    "colab_drive_bytes": Fact(15 * GB, "bytes of a free Drive", SURVEY),
}


@dataclass(frozen=True)
class Card:
    """A GPU: GiB that torch sees, GB/s, and TFLOP/s; None where a figure is not known, or the format not supported."""

    name: str
    capability: tuple[int, int]
    memory_gib: float
    bandwidth_gb_s: float
    fp16_tflops: float
    fp16_sustained_tflops: float | None
    bf16_tflops: float | None
    fp32_tflops: float
    source: str = SURVEY
    checked: str = _CHECKED


CARDS: dict[str, Card] = {
    # 65 TFLOP/s is the peak; the card is power-capped at 70 W, and fp16 matrix products sustain about 24
    "t4": Card("T4", (7, 5), 14.56, 320, 65, 24, None, 8.1, f"published peaks; memory: {MEASURED}"),
    "p100": Card("P100 (retired on Kaggle)", (6, 0), 15.9, 732, 18.7, None, None, 9.3),
    # 36 TFLOP/s with fp16 accumulation; products that accumulate in fp32, as torch's do, reach 18
    "rtx3050": Card("RTX 3050 8 GB", (8, 6), 7.6, 224, 36, None, 18, 9.1),
    "l4": Card("L4", (8, 9), 22, 300, 121, None, 121, 30),
    "a100-40": Card("A100 40 GB", (8, 0), 39, 1555, 312, None, 312, 19.5),
    "a100-80": Card("A100 80 GB", (8, 0), 79, 2039, 312, None, 312, 19.5),
    "h200": Card("H200", (9, 0), 139, 4800, 989, None, 989, 67),
}
