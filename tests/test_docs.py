"""The documents name figures, commands, files and keys that exist."""

import re
import shlex

import pytest

from docs import facts, figures, pictures, reference
from lib.config import REMOVED, Config
from lib.config.reader import sentences
from lib.machine.facts import CARDS
from tests.conftest import ROOT
from trainbook.commands import parsed

DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
# a path of this checkout, or one inside lib as design.md shortens it; a star stands for any name
NAMED = re.compile(
    r"`((?:configs|docs|lib|notebooks|notebooks_src|tests)/[\w./*-]+|\w+/\w+\.py|\w+\.py)`"
)
# a key, and no function that is the text of a link
KEY = re.compile(
    r"`((?:training|checkpoint|data|optimizer|scheduler|memory|session|run)\.\w+)[`:](?!\]\()"
)


def named(path):
    return path.relative_to(ROOT).as_posix()


def commands(text):
    """Every `trainbook ...` of a text, comments cut off."""
    joined = re.sub(r"\n\s*", " ", text)
    inline = re.findall(r"`(trainbook [^`]*)`", joined)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    found = [one for one in [*inline, *lines] if one.startswith("trainbook ")]
    return [one for one in found if "|" not in one and "..." not in one]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_command_link_test_file_and_key_that_a_document_names_exists(document):
    text = document.read_text()
    folders = [ROOT, ROOT / "lib", ROOT / "workloads", ROOT / "trainbook"]
    for command in commands(text):
        arguments = shlex.split(command)[1:]
        if not arguments or arguments in (["kaggle"], ["--version"]):
            continue
        is_name_alone = len(arguments) == 2 and arguments[0] == "kaggle"
        whole = [*arguments, "graphmer"] if is_name_alone else arguments
        assert parsed(whole).run, command
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), target
    for file, test in TEST.findall(text):
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), test
    for name in NAMED.findall(text):
        assert any(True for folder in folders for _ in folder.glob(name)), name
    assert set(KEY.findall(text)) <= {*sentences(Config), *REMOVED}


def anchors(text):
    """The anchors that GitHub gives the headings of a text; those of code blocks are no headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}


def test_the_front_page_leads_to_every_page():
    text = (ROOT / "README.md").read_text()
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert not pages - set(re.findall(r"\]\((docs/[\w.]+md)", text)), (
        "README links every page of docs/"
    )


def numbers(table):
    """Metric -> (baseline, model) of a table of a test."""
    rows = re.findall(r"^(\w+) +(-?[\d.]+) +(-?[\d.]+) +[+-]", table, re.MULTILINE)
    return {metric: (float(baseline), float(model)) for metric, baseline, model in rows}


def test_the_run_that_a_page_shows_is_that_of_its_commands(tmp_path):
    """One of 25 samples is 0.04; another machine's threads and versions may turn some."""
    page = (ROOT / "docs" / "own.md").read_text("utf-8")
    assert pictures.TABLE.read_text("utf-8") in page
    assert {"trainbook new my --like images", "trainbook train my.yaml"} <= set(commands(page))
    printed = numbers(pictures.trained(str(tmp_path)))
    shown = numbers(page)
    assert printed.keys() == shown.keys() == {"accuracy", "macro_f1"}
    for metric, values in shown.items():
        assert printed[metric] == pytest.approx(values, abs=0.13), metric
        assert printed[metric][1] > printed[metric][0] + 0.3, "a network gains much on this data"


@pytest.mark.parametrize("step", ["0.4 ms", "50 ms"])
def test_the_comparison_with_other_tools_has_the_ratios_of_the_record(step):
    page = (ROOT / "docs" / "compare.md").read_text("utf-8")
    row = re.search(rf"^\| a step of {step}[^|]*\|(.*)\|$", page, re.MULTILINE)[1]
    measured = figures.record("overhead")["steps"][step]
    peers = {name: each["wall"]["ratio"] for name, each in measured["peers"].items()}
    ratios = [
        measured["wall"]["ratio"],
        *(peers[name] for name in ("Accelerate", "Hugging Face Trainer", "Lightning")),
    ]
    assert re.findall(r"[\d.]+", row) == [f"{ratio:.2f}" for ratio in [*ratios, peers["Ignite"]]]


def test_every_fact_and_card_has_a_source_and_a_month():
    for entry in (*facts.FACTS.values(), *CARDS.values()):
        assert entry.source, entry
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", entry.checked), entry


def test_every_key_stands_in_the_reference_with_its_sentence():
    text = reference.all_keys() + reference.workloads()
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", text, re.MULTILINE))
    keys = {
        key
        for key, sentence in sentences(Config).items()
        if not any(one.startswith(f"{key}.") for one in rows)
    }
    assert keys <= rows.keys()
    assert all(rows.values())
    assert {"queue.grid", "workload.tiles.size", "workload.chain.roots"} <= rows.keys()
