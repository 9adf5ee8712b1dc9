"""The table of notebooks in README.md: what each is for, how long it takes, what comes out, and badges that open it.

    python -m docs.notebooks    plan the runs of all notebooks on Kaggle's two T4s, and write docs/hours.json

Planning takes a minute or two, so the table reads that file. Badges need an address: `repository` in pyproject.toml.
"""

import datetime
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from build_notebooks import badges, repository
from docs.reference import table

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks_src"
HOURS = Path(__file__).with_name("hours.json")
# By notebook: what it is for; its configurations, each with the number of runs and the name of a sample; what comes out
ABOUT: dict[str, tuple[str, tuple[tuple[str, int, str], ...], str]] = {
    "00_memory": ("Will my run fit, and how long does it take?", (), "a plan, as a page and as a file for training"),
    "01_graphmer": (
        "An encoder of Python code that names what others cannot follow",
        (("graphmer", 1, ""),),
        "weights, test ranks beside counting, answers on your sources",
    ),
    "02_glacier_pretrain": (
        "A U-Net that knows ice, on satellite images",
        (("glacier_pretrain", 1, "tiles"),),
        "weights that 03 starts from",
    ),
    "03_glacier_finetune": (
        "The same on your own scenes, in five folds",
        (("glacier_finetune", 5, "tiles"),),
        "five models, a table of scores",
    ),
    "04_glacier_ensemble": (
        "The best maps: three seeds and five folds vote",
        (("glacier_finetune", 3, "tiles"),),
        "masks as GeoTIFF, scores",
    ),
    "05_legal": (
        "The roles of sentences in judgments",
        (("legal", 1, "sentences"),),
        "weights, scores by role, the roles of your text",
    ),
    "06_vqa": (
        "Questions about pictures, answered in text",
        (("vqa", 1, "questions"),),
        "weights, answers beside guessing without looking",
    ),
    "07_your_model": (
        "A competition, or your own model and data",
        (),
        "weights, scores beside the baselines, `submission.csv`",
    ),
    "08_chat": (
        "A chat model on your conversations",
        (("chat", 1, "conversations of 2,048 tokens"),),
        "adapter, merged weights, answers beside the untouched base",
    ),
    "09_your_script": ("Your own training script, unchanged", (), "its checkpoints, figures, output, one archive"),
}  # fmt: skip
EMPTY = {
    "00_memory": "none: a laptop, seconds",
    "07_your_model": "yours: the notebook plans it first",
    "09_your_script": "yours: it ends in time, and resumes",
}


def title(name: str) -> str:
    """Returns the first heading of a notebook's source."""
    return re.search(r"^# # (.*)$", (SOURCES / f"{name}.py").read_text("utf-8"), re.MULTILINE)[1]


def hours(name: str, planned: dict) -> str:
    """Returns the hours of a full run on two T4s, or for each 1,000 samples where its length is in epochs."""
    times = []
    for config, runs, unit in ABOUT.get(name, ("", ()))[1]:
        if config in planned:
            time = runs * planned[config]["hours"]
            if time >= 1:
                amount = f"{time:.1f} h"
            else:
                amount = f"{max(1, round(60 * time))} min"
            times.append(f"{amount} for each 1,000 {unit}" if unit else amount)
    return ", ".join(times) or EMPTY.get(name, "not planned yet")


def notebooks() -> str:
    """Returns a row for each source of a notebook; one that ABOUT lacks has its heading alone."""
    published = repository()
    planned = json.loads(HOURS.read_text("utf-8"))["runs"]
    head = ["notebook", "for", "on Kaggle's two T4s, computed", "what comes out", "get it"]
    rows = []
    for path in sorted(SOURCES.glob("[0-9]*.py")):
        name = path.stem
        about, _, result = ABOUT.get(name, (title(name), (), "`outputs.tar.gz`"))
        ways = f"[file](notebooks/{name}.ipynb) {badges(name, published) if published else ''}".rstrip()
        rows.append(
            [f"[{name}](notebooks_src/{name}.py)", about, hours(name, planned), result, ways]
        )
    return table(head, rows)


def qwen(folder: Path) -> None:
    """Writes what a plan of configs/chat.yaml reads of its base, which nobody here has: sizes, and any tokenizer."""
    from trainbook.fits.language import KNOWN

    shutil.copytree(
        ROOT / "configs" / "chat-base",
        folder,
        dirs_exist_ok=True,
        ignore=lambda *_: ["model.safetensors"],
    )
    (folder / "config.json").write_text(json.dumps(KNOWN["Qwen2.5-1.5B"]), "utf-8")


def plan() -> None:
    """Plans what ABOUT names on two T4s, with 1,000 samples where a length is in epochs, and writes the hours."""
    from lib import planner
    from lib.task import load_config

    runs = {}
    base = Path(tempfile.mkdtemp())
    qwen(base)
    for config in dict.fromkeys(one for _, configs, _ in ABOUT.values() for one, _, _ in configs):
        path = ROOT / "configs" / f"{config}.yaml"
        if not path.is_file():
            continue
        changes = {"workload.base": str(base)} if config == "chat" else {}
        made = planner.make(load_config(path, changes), planner.find_card("t4"), 0, 1000)
        steps = made.max_steps or made.steps_for(1000)
        runs[config] = {"steps": steps, "hours": round(made.seconds(steps) / 3600, 2)}
        print(f"{config}: {runs[config]}", flush=True)
    record = {
        "date": f"{datetime.date.today()}",
        "command": "python -m docs.notebooks",
        "runs": runs,
    }
    HOURS.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def workload_pages() -> str:
    """Returns links to the pages of the workloads, by their headings."""
    names = sorted(path.parent.name for path in ROOT.glob("workloads/*/settings.py"))
    pages = [Path(__file__).with_name(f"{name}.md") for name in names]
    heads = [(page.name, page.read_text("utf-8").partition("\n")[0]) for page in pages]
    return "".join(f"- [{head.removeprefix('# ')}](docs/{name})\n" for name, head in heads)


TABLES = {"notebooks": notebooks, "workload-pages": workload_pages}

if __name__ == "__main__":
    sys.exit(plan())
