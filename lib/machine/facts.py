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
    checked: str = _CHECKED  # or the month of the edition of a data sheet
    device: str = ""  # pattern of what torch calls it, behind the words NVIDIA, Tesla and GeForce


_SHEETS = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_DESIGN = "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture"
_TURING = f"{_DESIGN}/NVIDIA-Turing-Architecture-Whitepaper.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_P100 = "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_GEFORCE = "https://www.nvidia.com/en-us/geforce/graphics-cards"
# The driver keeps some of a card for itself, newer ones more; the lower figure stands here.
_MESSAGES = "memory: PyTorch's out-of-memory messages in public reports"
_SURVEYED = f"memory: {SURVEY}"

CARDS: dict[str, Card] = {
    # 65 TFLOP/s is the peak; the card is power-capped at 70 W, and fp16 matrix products sustain about 24
    "t4": Card("T4", (7, 5), 14.56, 320, 65, 24, None, 8.1,
               f"{_SHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf; memory: {MEASURED}", device="T4"),
    "p100": Card("P100 (retired on Kaggle)", (6, 0), 15.9, 732, 18.7, None, None, 9.3, f"{_P100}; {_SURVEYED}",
                 device="P100-PCIE-16GB"),
    "v100-16": Card("V100 16 GB", (7, 0), 15.77, 900, 125, None, None, 15.7, f"{_VOLTA} (SXM2); {_MESSAGES}",
                    "2020-01", "V100-SXM[23]-16GB"),
    "v100-32": Card("V100 32 GB", (7, 0), 31.73, 900, 125, None, None, 15.7, f"{_VOLTA} (SXM2); {_MESSAGES}",
                    "2020-01", "V100-SXM[23]-32GB(-LS)?"),
    # From here on the fp16 of GeForce cards is that of products that accumulate in fp32, as torch's do; those that
    # accumulate in fp16 are twice as fast. The RTX 3050 has 36 of the latter kind, and reaches 18.
    "rtx2080ti": Card("RTX 2080 Ti", (7, 5), 10.57, 616, 53.8, None, None, 13.4, f"{_TURING}; {_MESSAGES}",
                      "2018-09", "RTX 2080 Ti"),
    "rtx3050": Card("RTX 3050 8 GB", (8, 6), 7.6, 224, 36, None, 18, 9.1,
                    f"{_GEFORCE}/30-series/rtx-3050/; {_SURVEYED}", device="RTX 3050"),
    # 112 tensor cores x 128 products x 2 x 1.777 GHz, half of it with sums in fp32
    "rtx3060": Card("RTX 3060 12 GB", (8, 6), 11.63, 360, 25.5, None, 25.5, 12.7,
                    f"{_GEFORCE}/30-series/rtx-3060-3060ti/; {_MESSAGES}", "2021-02", "RTX 3060"),
    "rtx3080": Card("RTX 3080 10 GB", (8, 6), 9.64, 760, 59.5, None, 59.5, 29.8, f"{_GA102}; {_MESSAGES}",
                    "2020-09", "RTX 3080"),
    "rtx3090": Card("RTX 3090", (8, 6), 23.57, 936, 71.2, None, 71.2, 35.6, f"{_GA102}; {_MESSAGES}",
                    "2020-09", "RTX 3090"),
    # 184 tensor cores x 256 x 2 x 2.475 GHz, half of it with sums in fp32
    "rtx4070": Card("RTX 4070", (8, 9), 11.61, 504, 58.3, None, 58.3, 29.1,
                    f"{_GEFORCE}/40-series/rtx-4070-family/; {_MESSAGES}", "2023-04", "RTX 4070"),
    "rtx4090": Card("RTX 4090", (8, 9), 23.52, 1008, 165.2, None, 165.2, 82.6, f"{_ADA}; {_MESSAGES}",
                    "2022-09", "RTX 4090"),
    "a10": Card("A10", (8, 6), 21.98, 600, 125, None, 125, 31.2, f"{_SHEETS}/a10/pdf/a10-datasheet.pdf; {_MESSAGES}",
                "2021-03", "A10"),
    "a6000": Card("RTX A6000", (8, 6), 47.4, 768, 154.8, None, 154.8, 38.7, f"{_GA102}; {_MESSAGES}",
                  "2020-09", "RTX A6000"),
    "l4": Card("L4", (8, 9), 22, 300, 121, None, 121, 30,
               f"https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet; {_SURVEYED}", device="L4"),
    "l40s": Card("L40S", (8, 9), 44.39, 864, 362, None, 362, 91.6,
                 f"https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413; {_MESSAGES}", "2023-08", "L40S"),
    "a100-40": Card("A100 40 GB", (8, 0), 39, 1555, 312, None, 312, 19.5,
                    f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet.pdf; {_SURVEYED}", device="A100-(SXM4|PCIE)-40GB"),
    "a100-80": Card("A100 80 GB", (8, 0), 79, 2039, 312, None, 312, 19.5,
                    f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf; {_SURVEYED}",
                    device="A100-SXM4-80GB"),
    "h100-pcie": Card("H100 PCIe 80 GB", (9, 0), 79.1, 2000, 756, None, 756, 51, f"{_HOPPER}; {_MESSAGES}",
                      "2022-03", "H100 PCIe"),
    "h100": Card("H100 80 GB", (9, 0), 79.1, 3350, 989, None, 989, 67, f"{_HOPPER} (SXM); {_MESSAGES}",
                 "2022-03", "H100 80GB HBM3"),
    "h200": Card("H200", (9, 0), 139, 4800, 989, None, 989, 67,
                 f"https://www.nvidia.com/en-us/data-center/h200/; {_SURVEYED}", device="H200"),
}  # fmt: skip
