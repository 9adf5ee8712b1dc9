"""What a trace says of layers and of the peak: tables, the course of a step, the snapshot, the picture."""

import dataclasses
import pickle
import pickletools
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.cuda import _memory_viz

from lib.errors import BadInput
from lib.planner import of_layers, predict, predict_inference
from lib.planner.drawing import as_png, draw
from lib.planner.log import CATEGORIES, OUTSIDE, Layer, folded
from tests.planner import models
from tests.planner.models import Encoder
from trainbook import commands

D, TOKENS = 64, 8 * 128
LAYER = 12 * D * D + 13 * D  # parameters


def step(net):
    return net(torch.randn(8, 128, D, device="cuda")).square().mean()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A prediction of three layers, and the snapshot of it."""
    path = tmp_path_factory.mktemp("snapshots") / "deep" / "step.pickle"
    return predict(lambda: Encoder(3, D), step, "t4", snapshot=path), path


def test_a_layer_has_what_can_be_counted_by_hand(traced):
    rows = {row.name: row for row in traced[0].layers}
    assert list(rows) == ["blocks.0", "blocks.1", "blocks.2", "head", OUTSIDE]
    for name in ("blocks.0", "blocks.1", "blocks.2"):
        row = rows[name]
        assert row.weights == row.gradients == pytest.approx(4 * LAYER, rel=0.01)
        assert row.optimizer == pytest.approx(8 * LAYER, rel=0.05)  # and a count of steps in 512 bytes for each
        assert row.activations == pytest.approx(66 * TOKENS * D, rel=0.07)  # see test_trace
    assert rows[OUTSIDE].weights == rows[OUTSIDE].optimizer == 0


def test_layers_and_groups_sum_to_the_peak(traced):
    prediction = traced[0]
    assert sum(row.at_peak for row in prediction.layers) == prediction.peak_bytes
    assert 0.9 * prediction.peak_bytes < sum(group.size for group in prediction.alive) <= prediction.peak_bytes
    sizes = [group.size for group in prediction.alive]
    assert sizes == sorted(sizes, reverse=True)


def test_the_peak_names_module_line_operator_and_shape(traced):
    wide = next(group for group in traced[0].alive if group.what == "gelu")
    assert (wide.module, wide.count, wide.shape) == ("blocks.*", 3, (8, 128, 4 * D))
    assert wide.line.startswith("planner/models.py:") and wide.size == 3 * 4 * 4 * TOKENS * D
    lines = Path(models.__file__).read_text().splitlines()
    assert "F.gelu" in lines[int(wide.line.partition(":")[2]) - 1]


def test_what_backward_makes_is_its_layers(traced):
    """The peak is where the last layer goes back, which holds gradients of its widest activations."""
    made = [group for group in traced[0].alive if group.category == "temporaries" and group.module.startswith("blocks")]
    assert made and all(group.line.startswith("planner/models.py") for group in made)


def test_a_recomputed_layer_is_named():
    def made():
        net = Encoder(2, D)
        for block in net.blocks:
            run = block.forward
            block.forward = lambda x, run=run: torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
        return net

    saved = predict(made, step, "t4")
    rows = {row.name: row for row in saved.layers}
    assert rows["blocks.0"].activations < 10 * TOKENS * D, "its input alone waits for the backward pass"
    assert rows["blocks.1"].at_peak > 50 * TOKENS * D, "and is computed again there"


def test_the_course_has_the_peak_and_its_moments(traced):
    prediction = traced[0]
    course = prediction.timeline
    totals = [sum(point) for point in course.points]
    assert max(totals) == totals[course.peak] == prediction.peak_bytes and len(totals) <= 240
    assert dict(zip(CATEGORIES, course.points[course.peak], strict=True)).items() >= prediction.by_category.items()
    assert [name for name, _ in course.moments] == ["after forward", "after backward", "after optimizer step"]
    places = [place for _, place in course.moments]
    assert places == sorted(places) and places[0] < course.peak < places[1]
    assert max(course.reserved) == prediction.reserved_bytes


def test_inference_has_a_course_too():
    course = predict_inference(lambda: Encoder(1, D), step).timeline
    assert [name for name, _ in course.moments] == ["after forward"] and max(map(sum, course.points)) > 0


def test_the_table_shows_alike_layers_as_one_row(traced):
    text = of_layers(traced[0])
    row = next(line for line in text.splitlines() if line.startswith("blocks.0 ... blocks.2 (3)"))
    whole = 3 * 4 * LAYER / 2**20
    assert row.split()[4:6] == [f"{whole:,.1f}", f"{whole:,.1f}"]
    assert "gelu (activations)" in text and "8 x 128 x 256" in text
    mixed = [Layer(f"a.{n}", 1, n // 2, 0, 0, 0, 1) for n in range(4)]
    assert [row.name for row in folded(mixed)] == ["a.0 ... a.1", "a.2 ... a.3"]


def test_small_layers_are_one_row():
    def made():
        small = {name: nn.Linear(4, 4) for name in "abcde"}
        return nn.ModuleDict({**small, "wide": nn.Linear(512, 512)})

    def several(net):
        x = net["wide"](torch.randn(64, 512, device="cuda"))[:, :4]
        for name in "abcde":
            x = net[name](x)
        return x.sum()

    text = of_layers(predict(made, several))
    assert "smaller ones (5)" in text and "\na " not in text.split("\n\n")[0]


# --- the snapshot -----------------------------------------------------------------------------------------------------


def test_torchs_own_reader_takes_the_snapshot(traced):
    prediction, path = traced
    snapshot = pickle.loads(path.read_bytes())
    assert "total_reserved" in _memory_viz.segsum(snapshot), "it raises where blocks do not fill their segments"
    assert "cudaMalloc" in (text := _memory_viz.trace(snapshot)) and "{" not in text, "it knows every action"
    assert "blocks.2.fc1 weight [weights]" in _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert _memory_viz.segments(snapshot, format_flamegraph=lambda lines: lines).count("active_allocated") > 100
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)
    before, now, highest = 0, 0, 0
    for event in snapshot["device_traces"][0]:
        now += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        before += {"segment_alloc": 1, "segment_free": -1}.get(event["action"], 0) * event["size"]
        highest = max(highest, now)
    assert highest == prediction.peak_bytes and before == prediction.reserved_bytes
    assert before == sum(segment["total_size"] for segment in snapshot["segments"])


def test_the_viewer_on_the_web_can_read_every_opcode_of_it(traced):
    """Those that torch/utils/viz/MemoryViz.js knows; segments are those of a device, and no event has a category, by
    which that file fails."""
    known = (
        "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST "
        "EMPTY_TUPLE FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM "
        "SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3"
    )
    used = {opcode.name: argument for opcode, argument, _ in pickletools.genops(traced[1].read_bytes())}
    assert set(used) <= set(known.split()) and 2 <= used["PROTO"] <= 4
    snapshot = pickle.loads(traced[1].read_bytes())
    assert {segment["device"] for segment in snapshot["segments"]} == {0}
    assert not any("category" in event for event in snapshot["device_traces"][0])


def test_a_segment_that_is_given_back_is_in_the_snapshot(tmp_path):
    def tight(net):
        return net(torch.randn(1, device="cuda").expand(2, 1)).sum() + sum(
            torch.empty(size * 2**20, dtype=torch.uint8, device="cuda").float().sum() * 0 for size in (30, 50, 70)
        )

    path = tmp_path / "tight.pickle"
    predict(lambda: nn.Linear(1, 1), tight, "0.6 GiB, capability 7.5", snapshot=path)
    actions = [event["action"] for event in pickle.loads(path.read_bytes())["device_traces"][0]]
    assert "segment_free" in actions


# --- the picture and the commands -------------------------------------------------------------------------------------


def test_the_picture_is_drawn_and_small_enough_for_a_notebook(traced, tmp_path):
    path = draw(traced[0], tmp_path / "deep" / "memory.png", "three layers")
    assert Image.open(path).size == (1320, 506)
    assert as_png(traced[0], "three layers").startswith(b"\x89PNG") and len(as_png(traced[0], "x")) < 80_000
    with pytest.raises(BadInput, match="nothing to draw of nothing"):
        draw(dataclasses.replace(traced[0], timeline=None), tmp_path / "none.png", "nothing")


def test_the_command_prints_layers_and_writes_picture_and_snapshot(toy, tmp_path, capsys):
    asked = ["plan", str(tmp_path / "toy.yaml"), "--layers", "--picture", str(tmp_path / "a.png")]
    assert commands.main([*asked, "--snapshot", str(tmp_path / "a.pickle")]) == 0
    said = capsys.readouterr()
    assert "gradients  optimizer  activations  of peak" in said.out and "Wrote" in said.err
    assert Image.open(tmp_path / "a.png").width == 1320
    assert _memory_viz.segsum(pickle.loads((tmp_path / "a.pickle").read_bytes()))
    assert commands.main([*asked, "--gpu", "t4", "--gpu", "l4"]) == 2
    assert "these are 2. Give one --gpu" in capsys.readouterr().err
