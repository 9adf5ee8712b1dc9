"""All facts of the platforms: those of lib/machine/facts.json, and those that only documents print.

The latter are defined here, so that no notebook carries them.
"""

from lib.machine.facts import FACTS as USED
from lib.machine.facts import GB, Fact

KAGGLE_DOCS = "kaggle.com/docs/notebooks"
MOLAB_DOCS = "marimo, docs/guides/molab.md"
MEASURED = "measured reports, 2026-09"
SURVEY = "the project's survey; primary source not noted"

FACTS: dict[str, Fact] = {
    **USED,
    "kaggle_session_minutes": Fact(
        720, "minutes, CPU or GPU, interactive and batch alike", KAGGLE_DOCS
    ),
    "kaggle_tpu_session_minutes": Fact(540, "minutes", KAGGLE_DOCS),
    "kaggle_idle_minutes": Fact(20, "minutes, interactive only; another page says 60", KAGGLE_DOCS),
    "kaggle_tpu_quota_hours": Fact(20, "hours a week", "docs, account quota API"),
    "kaggle_quota_reset": Fact("Saturday 00:00", "UTC", "docs, account quota API"),
    "kaggle_batch_gpu_sessions": Fact(
        2, "batch GPU sessions at once", "reported text of the error"
    ),
    "kaggle_t4_memory_taken_mib": Fact(107, "MiB taken on a T4 at the start", MEASURED),
    "kaggle_ram_gib": Fact(31.35, "GiB; the documentation says 29", f"{KAGGLE_DOCS}, measured"),
    "kaggle_vcpus": Fact(4, "vCPUs, for both cards together", f"{KAGGLE_DOCS}, measured"),
    "kaggle_scratch_bytes": Fact(
        50 * GB, "bytes in /tmp at least, not saved", "reports of 50 to 60 GB"
    ),
    "colab_gpus": Fact(1, "T4 card", SURVEY),
    "colab_vcpus": Fact(2, "vCPUs", SURVEY),
    "colab_ram_gib": Fact(12.7, "GiB", SURVEY),
    "colab_usd_per_unit": Fact(
        0.0999, "USD a compute unit, at 9.99 for 100", "techcrunch.com, 2022-09-29", "2022-09"
    ),
    "colab_t4_units_per_hour": Fact(
        1.96, "units an hour of a T4", "currypurin.com, 2022-09-30, measured", "2022-09"
    ),
    "colab_pro_jpy_per_month": Fact(
        1072, "JPY a month, of Colab Pro", "currypurin.com, 2022-09-30", "2022-09"
    ),
    "colab_pro_units_per_month": Fact(
        100, "units a month, in Colab Pro", "currypurin.com, 2022-09-30", "2022-09"
    ),
    "molab_idle_minutes": Fact(90, "minutes", MOLAB_DOCS, "2026-11"),
    "molab_vcpus": Fact(4, "CPUs", MOLAB_DOCS, "2026-11"),
    "molab_ram_gb": Fact(32, "GB", MOLAB_DOCS, "2026-11"),
    "lightning_t4_hours": Fact(
        22, "hours a month of a T4, about", "public lists of free GPUs", "2026-11"
    ),
    "lightning_storage_bytes": Fact(
        50 * GB, "bytes in the free plan", "lightning.ai, FAQ on billing", "2026-07"
    ),
    "rtx3050_usd": Fact(
        249, "USD, price at its launch", "dotesports.com on NVIDIA's CES talk", "2022-01"
    ),
    "rtx3050_watts": Fact(130, "W at most, the card alone", "geektopia.es, 2022-01-04", "2022-01"),
}
