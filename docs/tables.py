"""Computes the tables of README.md and docs/ from docs/facts.py, lib/machine/facts.json and configurations.

    python -m docs.tables           write the tables between their marks
    python -m docs.tables --check   name the files with stale tables; exit code 1 if there are any

A table is between `<!-- table NAME -->` and `<!-- end -->`; NAME is a key of TABLES below.
"""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs import figures, notebooks, pictures, public, reference, tried
from docs.facts import FACTS
from docs.reference import table
from lib.config import reader
from lib.machine.facts import CARDS, Card
from lib.task import find_task, load_config
from lib.text import computed

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WEEKS = 52
RUN_STEPS = 10_000
RUNS = 100
GIB = 2**30
LENGTHS = (100, 1_000, 10_000, 50_000, 100_000)
FILLS = (
    "#0072b2",
    "#f8fafc",
    "url(#lines)",
)  # also told apart in grey and by the colour-blind: dark, white, hatched
TICKS = {1: "1 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h"}


def fact(name: str) -> float:
    return float(FACTS[name].value)


# --- the reference workload -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """The sizes of a step of configs/graphmer.yaml at its longest chains."""

    parameters: int
    feed_forward: int
    batch: int
    positions: int
    layers: int
    width: int

    @property
    def tokens(self) -> int:
        return self.batch * self.positions

    @property
    def layer_weights(self) -> int:
        return self.layers * (4 * self.width**2 + 2 * self.width * self.feed_forward)

    @property
    def tflop(self) -> float:
        """Returns TFLOP of a step: 6 N T for the layers' weights, 12 L S d T for attention, forward and backward.

        Kaplan et al., arXiv 2001.08361, section 2.1. Embeddings and the head are left out, so it is a lower bound.
        """
        weights = 6 * self.layer_weights * self.tokens
        attention = 12 * self.layers * self.positions * self.width * self.tokens
        return (weights + attention) / 1e12

    def samples_that_fit(self, card: Card) -> int:
        """Returns how many samples fit 92 % of a card's free memory.

        States take 16 bytes a parameter, activations in fp16 38 d bytes a token and layer.
        """
        free = 0.92 * (card.memory_gib - 0.2) * GIB - 16 * self.parameters
        return max(0, int(free / (38 * self.width * self.layers * self.positions)))


@cache
def workload() -> Workload:
    config = load_config(DOCS.parent / "configs" / "graphmer.yaml")
    chain = config.workload.chain
    model = config.workload.model
    count = sum(p.numel() for p in find_task(config.task)(config).model().parameters())
    positions = chain.roots + chain.facts
    return Workload(
        count,
        model.feed_forward,
        config.training.effective_batch,
        positions,
        model.layers,
        model.hidden,
    )


def rate(card: Card) -> float:
    """Returns the TFLOP/s that bound a step: the sustained rate if known, else the peak with fp32 accumulation."""
    return card.fp16_sustained_tflops or card.bf16_tflops or card.fp16_tflops


@dataclass(frozen=True)
class Place:
    """A way to train: its cards, the hours of a week, and what an hour costs in USD."""

    name: str
    card: Card
    cards: int
    week_hours: float | None
    usd_an_hour: float | None

    @property
    def steps_per_second(self) -> float:
        return self.cards * rate(self.card) / workload().tflop

    def hours(self, steps: float) -> float:
        return steps / self.steps_per_second / 3600


def value_of_a_t4_hour() -> float:
    return fact("colab_usd_per_unit") * fact("colab_t4_units_per_hour")


def places() -> list[Place]:
    return [
        Place(
            "Kaggle, T4 x2",
            CARDS["t4"],
            int(fact("kaggle_gpus")),
            fact("kaggle_gpu_quota_hours"),
            0,
        ),
        Place("Colab, free, T4", CARDS["t4"], int(fact("colab_gpus")), None, 0),
        Place(
            "Colab, paid by use, T4",
            CARDS["t4"],
            int(fact("colab_gpus")),
            None,
            value_of_a_t4_hour(),
        ),
        Place("your own RTX 3050 8 GB", CARDS["rtx3050"], 1, 24.0 * 7, None),
    ]


# --- the tables -------------------------------------------------------------------------------------------------------


def kaggle_limits() -> str:
    names = [name for name in FACTS if name.startswith("kaggle_")]
    rows = [[f"`{name}`", _shown(FACTS[name].value), FACTS[name].unit] for name in names]
    return table(["name in `facts.FACTS`", "value", "unit"], rows)


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}"


def cards() -> str:
    rows = [
        [
            card.name,
            f"{card.capability[0]}.{card.capability[1]}",
            f"{card.memory_gib:g}",
            f"{card.bandwidth_gb_s:g}",
            f"{card.fp16_tflops:g}" + _sustained(card),
            f"{card.bf16_tflops:g}" if card.bf16_tflops else "none",
        ]
        for card in CARDS.values()
    ]
    head = ["card", "capability", "GiB that torch sees", "GB/s", "fp16 TFLOP/s", "bf16"]
    return table(head, rows)


def _sustained(card: Card) -> str:
    if card.fp16_sustained_tflops:
        return f" (sustained {card.fp16_sustained_tflops:g})"
    return ""


def speed() -> str:
    work = workload()
    text = (
        "The encoder of `configs/graphmer.yaml` on full chains: "
        f"{work.parameters / 1e6:.1f} M parameters, N = {work.layer_weights / 1e6:.1f} M of them in the layers; "
        f"{work.batch} samples of S = {work.positions} "
        f"positions a step, so T = {work.tokens:,} tokens; L = {work.layers} layers of width d = {work.width}. A step "
        f"takes at least 6 N T + 12 L S d T = {work.tflop:.1f} TFLOP. Steps/s are at most cards x TFLOP/s / TFLOP a "
        "step. The hand formula takes 92 % of free memory, less 16 bytes a parameter, divided by 38 d bytes a token "
        "and layer.\n\n"
    )
    rows = []
    for place in places():
        fits = work.samples_that_fit(place.card)
        known = "sustained" if place.card.fp16_sustained_tflops else "peak"
        steps = place.week_hours and place.week_hours * 3600 * place.steps_per_second
        week = computed(steps) if steps else "not published"
        rows.append(
            [
                place.name, f"{place.cards} x {rate(place.card):g} ({known})", computed(place.steps_per_second),
                f"{place.cards} x {fits}", week,
            ]
        )  # fmt: skip
    head = [
        "place",
        "TFLOP/s",
        "steps/s at most",
        "samples at once, by the hand formula",
        "steps a week at most",
    ]
    return text + table(head, rows)


def cost() -> str:
    month = fact("kaggle_gpu_quota_hours") * WEEKS / 12
    rows = []
    for place in places():
        hours = place.hours(RUN_STEPS * RUNS)
        month_usd, year_usd, runs_usd = (_usd(place, one) for one in (month, month * 12, hours))
        rows.append([place.name, month_usd, year_usd, f"{hours:,.0f} h", runs_usd])
    worth = month * int(fact("kaggle_gpus")) * value_of_a_t4_hour()
    head = [
        "place", f"a month of {month:.0f} h", f"a year of {month * 12:,.0f} h",
        f"{RUNS} runs of {RUN_STEPS:,} steps, at least", "which cost",
    ]  # fmt: skip
    text = (
        f"\nThe hourly value: a T4 for an hour costs {fact('colab_usd_per_unit'):g} USD a unit x "
        f"{fact('colab_t4_units_per_hour'):g} units = {value_of_a_t4_hour():.3f} USD on Colab (2022-09). At that value "
        f"Kaggle's {fact('kaggle_gpu_quota_hours'):g} h a week of two cards are worth {worth:.0f} USD a month and "
        f"{worth * 12:,.0f} USD a year.\n"
    )
    return table(head, rows) + text


def _usd(place: Place, hours: float) -> str:
    if place.usd_an_hour is not None:
        return f"{place.usd_an_hour * hours:,.0f} USD"
    return f"{fact('rtx3050_usd'):g} USD once + {fact('rtx3050_watts') / 1000 * hours:,.0f} kWh"


def compare() -> str:
    t4 = CARDS["t4"]
    own = CARDS["rtx3050"]
    kaggle_gb = fact("kaggle_output_bytes") / 1e9
    drive_gb = fact("colab_drive_bytes") / 1e9
    quota = fact("kaggle_gpu_quota_hours")
    gpus = fact("kaggle_gpus")
    session = fact("kaggle_session_minutes") / 60
    run = fact("kaggle_run_minutes") / 60
    colab = fact("colab_session_minutes") / 60
    scratch_gb = fact("kaggle_scratch_bytes") / 1e9
    rows = [
        ["GPU", f"{gpus:g} x {t4.name}", f"{fact('colab_gpus'):g} x {t4.name}, when there is one", "yours, say a 3050"],
        ["VRAM, GiB", f"{gpus:g} x {t4.memory_gib:g}, not pooled", f"{t4.memory_gib:g}", f"{own.memory_gib:g}"],
        ["RAM", f"{fact('kaggle_ram_gib'):g} GiB", f"{fact('colab_ram_gib'):g} GiB", "yours"],
        ["CPUs", f"{fact('kaggle_vcpus'):g} vCPUs", f"{fact('colab_vcpus'):g} vCPUs", "yours"],
        ["kept storage", f"{kaggle_gb:g} GB with a version", f"Drive, {drive_gb:g} GB; not /content", "your disk"],
        ["scratch", f"{scratch_gb:g} GB at least in /tmp", "/content; ask the machine", "your disk"],
        ["files", f"{fact('kaggle_output_files'):g}, a soft budget", "not published", "no limit"],
        ["a session", f"{session:g} h; a run stops itself after {run:g}", f"at most {colab:g} h", "no end"],
        ["idle limit", f"{fact('kaggle_idle_minutes'):g} min, interactive only", "not published", "none"],
        ["with the browser closed", "yes: Save & Run All", "no, within the idle limit", "yes"],
        ["quota", f"{quota:g} h a week, renewed {FACTS['kaggle_quota_reset'].value} UTC", "not published", "none"],
        ["card hours a week", f"{quota * gpus:g}", "not published", f"{24 * 7}"],
        ["set-up", "import one file", "open one file", "make train"],
        ["data", "a data set, mounted read-only", "Drive, or a download", "a folder"],
        ["earlier results", "its own output as an input", "Drive", "the same folder"],
    ]  # fmt: skip
    return table(["", "Kaggle", "Colab, free", "your own machine"], rows)


def _kinds() -> list[Place]:
    """Returns the places that differ in speed."""
    return [place for place in places() if place.usd_an_hour is None or not place.usd_an_hour]


def _time(seconds: float) -> str:
    """Writes a bound of a time, which is not known to the second: 14 s, 24 min, 2.0 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def picture() -> str:
    """Returns bars of the same times as SVG: a group for each length, on a logarithmic scale."""
    shown = [(place, fill) for place, fill in zip(_kinds(), FILLS, strict=True)]
    left = 110
    width = 460
    bar = 16
    top = 46
    group = bar * len(shown) + 14
    first = 0
    last = 5  # powers of ten of seconds: 1 s to a day and a bit
    height = top + group * len(LENGTHS) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" '
        f'width="{left + width + 90}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<defs><pattern id="lines" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="white"/><rect width="2" height="6" fill="#d55e00"/></pattern></defs>',
    ]
    for number, (place, fill) in enumerate(shown):
        lines.append(
            f'<rect x="{left + 170 * number}" y="8" width="12" height="12" fill="{fill}" stroke="#334155"/>'
        )
        lines.append(f'<text x="{left + 18 + 170 * number}" y="19">{place.name}</text>')
    for power, name in TICKS.items():
        x = left + width * (math.log10(power) - first) / (last - first)
        lines.append(f'<path d="M{x:.0f},{top - 14} V{height - 26}" stroke="#cbd5e1"/>')
        lines.append(f'<text x="{x:.0f}" y="{height - 10}" text-anchor="middle">{name}</text>')
    for row, steps in enumerate(LENGTHS):
        y = top + group * row
        lines.append(
            f'<text x="{left - 8}" y="{y + group / 2 - 4:.0f}" text-anchor="end">{steps:,} steps</text>'
        )
        for number, (place, fill) in enumerate(shown):
            seconds = place.hours(steps) * 3600
            length = width * (math.log10(seconds) - first) / (last - first)
            lines.append(
                f'<rect x="{left}" y="{y + bar * number}" width="{length:.0f}" height="{bar - 3}" fill="{fill}" '
                'stroke="#334155"/>'
            )
            lines.append(
                f'<text x="{left + length + 5:.0f}" y="{y + bar * number + 11}">{_time(seconds)}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


EXAMPLES = DOCS.parent / "trainbook" / "new" / "examples"


def own_task() -> str:
    return f"```python\n{(EXAMPLES / 'images.py').read_text('utf-8')}```\n"


def own_config() -> str:
    return f"```yaml\n{(EXAMPLES / 'images.yaml').read_text('utf-8').replace('images.py:', 'my_task.py:')}```\n"


def words() -> str:
    rows = []
    for row in reader.words():
        elsewhere, here = (
            ", ".join(f"`{name}`" for name in row[side].split()) for side in ("elsewhere", "here")
        )
        rows.append([elsewhere, here or row["how"]])
    return table(["elsewhere", "here"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "kaggle-limits": kaggle_limits,
    "cards": cards,
    "speed": speed,
    "cost": cost,
    "compare": compare,
    "own-task": own_task,
    "own-config": own_config,
    "words": words,
    **public.TABLES,
    **reference.TABLES,
    **notebooks.TABLES,
    **pictures.TABLES,
    **tried.TABLES,
    **figures.TABLES,
}


FILES: dict[str, Callable[[], str]] = {"pictures/durations.svg": picture}


def render(text: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def main(arguments: list[str]) -> int:
    stale = []
    pages = [
        page for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))) if page.is_file()
    ]
    for path in pages:
        text = path.read_text("utf-8")
        if (fresh := render(text)) != text:
            stale.append(path.relative_to(DOCS.parent).as_posix())
            if "--check" not in arguments:
                path.write_text(fresh, "utf-8")
                print(f"wrote {stale[-1]}")
    for name, draw in FILES.items():
        path = DOCS / name
        if path.parent.is_dir() and (not path.is_file() or path.read_text("utf-8") != draw()):
            stale.append(f"docs/{name}")
            if "--check" not in arguments:
                path.write_text(draw(), "utf-8")
                print(f"wrote docs/{name}")
    if stale and "--check" in arguments:
        print(f"Stale: {', '.join(stale)}. To rebuild:\n    make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
