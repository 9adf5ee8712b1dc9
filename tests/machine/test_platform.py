"""Detection, mounted inputs in both of Kaggle's layouts, and the table of facts."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.errors import BadInput
from lib.machine import inputs, platform
from lib.machine.facts import CARDS, FACTS
from lib.task import locate_data

NEW = [
    "datasets/ada/code-graph",
    "datasets/bob/code-graph",
    "datasets/ada/tiles",
    "notebooks/ada/earlier-run",
    "competitions/titanic",
    "models/google/vit/pytorch/base/1",
]
OLD = ["tiles", "titanic"]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the machine's own platform, or files of the folder that it was started in."""
    for name in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG", "TRAINBOOK_KAGGLE_ROOT", "TRAINBOOK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "_CONTENT", tmp_path / "content")
    in_shell(monkeypatch, None)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def in_shell(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def kaggle(
    monkeypatch: pytest.MonkeyPatch, root: Path, mounts: list[str], run_type: str = "Batch"
) -> platform.Platform:
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", run_type)
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(root))
    for mount in mounts:
        (root / "input" / mount).mkdir(parents=True)
        (root / "input" / mount / "data.jsonl").write_text("{}\n")
    return platform.detect()


@pytest.mark.parametrize(("run_type", "batch"), [("Interactive", False), ("Batch", True)])
def test_kaggle_is_told_by_its_run_type_even_where_colab_seems_to_be(monkeypatch, tmp_path, run_type, batch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    in_shell(monkeypatch, "<google.colab._shell.Shell object>")
    here = kaggle(monkeypatch, tmp_path, [], run_type)
    assert (here.name, here.batch) == ("kaggle", batch)
    assert (here.input_dir, here.output_dir) == (tmp_path / "input", tmp_path / "working")
    assert here.scratch_dir == Path("/tmp/trainbook-cache")
    assert (here.session_minutes, here.output_bytes, here.output_files) == (690, 20 * 10**9, 500)


def test_kaggle_without_a_root_given(monkeypatch):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert platform.detect().output_dir == Path("/kaggle/working")


def test_colab_writes_to_drive_where_it_is_mounted(monkeypatch, tmp_path):
    in_shell(monkeypatch, "<google.colab._shell.Shell object>")
    content = tmp_path / "content"
    assert (platform.detect().name, platform.detect().output_dir) == ("colab", content)
    (content / "drive" / "MyDrive").mkdir(parents=True)
    assert platform.detect().output_dir == content / "drive" / "MyDrive" / "trainbook"
    assert platform.detect().session_minutes == 720


def test_a_child_process_on_colab_is_on_colab_too(monkeypatch, tmp_path):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    assert platform.detect().name == "local"
    (tmp_path / "content").mkdir()
    assert platform.detect().name == "colab"


def test_local(monkeypatch):
    here = platform.detect()
    assert (here.name, here.batch, here.input_dir, here.output_dir) == ("local", False, None, Path("runs"))
    assert (here.session_minutes, here.output_bytes, here.output_files) == (None, None, None)
    assert here.scratch_dir == Path.home() / ".cache" / "trainbook"
    assert inputs.mounted(here) == []


@pytest.mark.parametrize("run_type", ["", "Batch"])
def test_the_cache_can_be_put_elsewhere(monkeypatch, tmp_path, run_type):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", run_type)
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    assert platform.detect().scratch_dir == tmp_path / "cache"


def test_only_a_kernel_is_a_notebook(monkeypatch):
    assert not platform.in_notebook()
    in_shell(monkeypatch, SimpleNamespace())  # IPython in a terminal
    assert not platform.in_notebook()
    in_shell(monkeypatch, SimpleNamespace(kernel=object()))
    assert platform.in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not platform.in_notebook()
    assert "IPython" not in sys.modules


@pytest.mark.parametrize("layout", [NEW, OLD, [*NEW, *OLD], []])
def test_inputs_are_listed_in_both_layouts(monkeypatch, tmp_path, layout):
    here = kaggle(monkeypatch, tmp_path, layout)
    assert inputs.mounted(here) == sorted(tmp_path / "input" / mount for mount in layout)


@pytest.mark.parametrize(
    ("layout", "name", "expected"),
    [
        (NEW, "tiles", "datasets/ada/tiles"),
        (NEW, "ada/tiles", "datasets/ada/tiles"),
        (NEW, "bob/code-graph", "datasets/bob/code-graph"),
        (NEW, "datasets/bob/code-graph", "datasets/bob/code-graph"),
        (NEW, "ada/earlier-run", "notebooks/ada/earlier-run"),
        (NEW, "earlier-run", "notebooks/ada/earlier-run"),
        (NEW, "titanic", "competitions/titanic"),
        (NEW, "google/vit", "models/google/vit/pytorch/base/1"),
        (NEW, "vit", "models/google/vit/pytorch/base/1"),
        (NEW, "google/vit/pytorch/base/1", "models/google/vit/pytorch/base/1"),
        (OLD, "tiles", "tiles"),
        (OLD, "ada/tiles", "tiles"),
        (OLD, "titanic", "titanic"),
    ],
)
def test_an_input_is_found_by_slug_or_owner(monkeypatch, tmp_path, layout, name, expected):
    assert inputs.find_input(name, kaggle(monkeypatch, tmp_path, layout)) == tmp_path / "input" / expected


def test_a_path_is_taken_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    assert inputs.find_input(str(tmp_path / "data"), platform.detect()) == tmp_path / "data"


@pytest.mark.parametrize("name", ["tile", "eve/tiles", "ada", "datasets/ada/tile", "1", "/nowhere/at/all"])
def test_an_input_that_is_not_there_is_answered_with_what_is(monkeypatch, tmp_path, name):
    with pytest.raises(BadInput, match=re.escape(name)) as error:
        inputs.find_input(name, kaggle(monkeypatch, tmp_path, NEW))
    assert all(mount in str(error.value) for mount in NEW)


def test_an_ambiguous_slug_is_refused_with_the_candidates(monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="2 mounted inputs: datasets/ada/code-graph, datasets/bob/code-graph"):
        inputs.find_input("code-graph", kaggle(monkeypatch, tmp_path, NEW))


def test_nothing_mounted(monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="mounted: nothing"):
        inputs.find_input("tiles", kaggle(monkeypatch, tmp_path, []))
    with pytest.raises(BadInput, match="Give a path that exists"):
        monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE")
        inputs.find_input("tiles", platform.detect())


def test_folders_with_a_sentinel_are_found_shallow_ones_first(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, ["datasets/ada/tiles", "old"])
    deep = tmp_path / "input" / "datasets" / "ada" / "tiles" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "graph-1.jsonl").touch()
    (tmp_path / "input" / "old" / "graph-2.jsonl").touch()
    assert inputs.search_inputs(["graph-*.jsonl"], here) == [tmp_path / "input" / "old", deep]
    assert inputs.search_inputs(["*.tif", "data.jsonl"], here) == inputs.mounted(here)
    assert inputs.search_inputs(["*.png"], here) == []


def test_the_search_is_bounded_and_says_so(monkeypatch, tmp_path, capsys):
    here = kaggle(monkeypatch, tmp_path, ["a", "b", "c"])
    for index in range(30):
        (tmp_path / "input" / "a" / f"{index:03}.txt").touch()
    assert inputs.search_inputs(["data.jsonl"], here, limit=31) == [tmp_path / "input" / "a"]
    assert "Looked at 31 entries of the mounted inputs, not at all" in capsys.readouterr().out
    assert len(inputs.search_inputs(["data.jsonl"], here, limit=40)) == 3
    assert capsys.readouterr().out == ""


def test_a_link_to_a_folder_above_does_not_make_the_search_endless(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, ["a"])
    (tmp_path / "input" / "a" / "loop").symlink_to(tmp_path / "input", target_is_directory=True)
    assert inputs.search_inputs(["data.jsonl"], here) == [tmp_path / "input" / "a"]


@pytest.mark.parametrize("entry", [*FACTS.values(), *CARDS.values()], ids=str)
def test_every_fact_and_card_has_a_source_and_a_month(entry):
    assert entry.source
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", entry.checked)


def test_cards_agree_with_their_capabilities():
    assert set(CARDS) == {"t4", "p100", "rtx3050", "l4", "a100-40", "a100-80", "h200"}
    for card in CARDS.values():
        assert (card.bf16_tflops is not None) == (card.capability >= (8, 0)), card.name
        assert card.fp16_sustained_tflops is None or card.fp16_sustained_tflops < card.fp16_tflops
    t4_mib = FACTS["kaggle_t4_memory_mib"].value
    assert CARDS["t4"].memory_gib == pytest.approx(t4_mib / 1024, abs=0.01)


LAYOUTS = {"new": "datasets/ada/graphs", "old": "graphs"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["graphs", "ada/graphs"])
def test_a_named_data_set_is_entered_to_where_its_archive_was_unpacked(monkeypatch, tmp_path, layout, name):
    kaggle(monkeypatch, tmp_path, [LAYOUTS[layout], "datasets/ada/other"])
    inner = tmp_path / "input" / LAYOUTS[layout] / "data" / "v1"
    inner.mkdir(parents=True)
    (inner / "entities.jsonl").touch()
    assert locate_data(name, ("entities.jsonl",)) == inner
    (tmp_path / "input" / LAYOUTS[layout] / "entities.jsonl").touch()
    assert locate_data(name, ("entities.jsonl",)) == tmp_path / "input" / LAYOUTS[layout]  # the shallow one first
    assert locate_data(name, ("nothing.txt",)) == tmp_path / "input" / LAYOUTS[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_name_the_sentinel_is_searched_and_a_choice_is_said(monkeypatch, tmp_path, capsys, layout):
    kaggle(monkeypatch, tmp_path, [LAYOUTS[layout], "datasets/bob/more"])
    assert locate_data("", ("entities.jsonl",)) is None
    for mount in (LAYOUTS[layout], "datasets/bob/more"):
        (tmp_path / "input" / mount / "entities.jsonl").touch()
    first, second = sorted(tmp_path / "input" / mount for mount in (LAYOUTS[layout], "datasets/bob/more"))
    assert locate_data("", ("entities.jsonl",)) == first
    assert f"{first} is taken, not {second}. data.dir names another" in capsys.readouterr().out


def test_a_folder_of_ones_own_is_taken_as_it_is_and_not_searched(tmp_path):
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "entities.jsonl").touch()
    assert locate_data(str(tmp_path / "tree"), ("entities.jsonl",)) == tmp_path / "tree"


@pytest.mark.parametrize(
    "mount, inside, found",
    [
        ("notebooks/ada/earlier", "toy", "toy"),
        ("earlier", "toy", "toy"),
        ("datasets/ada/earlier", "toy", "toy"),
        ("earlier", "outputs/toy", "outputs/toy"),
        ("datasets/ada/earlier", "", ""),
    ],
)
def test_an_earlier_run_is_found_wherever_a_mount_may_hold_it(monkeypatch, tmp_path, mount, inside, found):
    here = kaggle(monkeypatch, tmp_path, [mount])
    run = tmp_path / "input" / mount / inside
    (run / "checkpoints").mkdir(parents=True)
    (run / "summary.json").write_text('{"run": "toy"}')
    places = [place for place in inputs.earlier_runs("toy", here) if (place / "checkpoints").is_dir()]
    assert places == [tmp_path / "input" / mount / found]
    others = [place for place in inputs.earlier_runs("other", here) if (place / "checkpoints").is_dir()]
    assert others == []
