"""The configuration that trains on a folder of scenes, made of what was seen in it."""

import csv
import io
import json
import re
from collections.abc import Sequence

from lib.errors import BadInput, first_ten, printable
from workloads.glacier.survey import MOST_CLASSES, Found, groups_of

_TWO = ("background", "foreground")
_KNOWN = {(0, 85, 170, 255): ("background", "glacier", "debris", "lake"), (0, 1): _TWO, (0, 255): _TWO}
_UNKNOWN_CODE = 255  # a usual mark of pixels without a label, beside classes 0, 1, 2, ...
_RESERVED = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")  # of YAML
_FEW_SCENES = 6  # with fewer, squares of the map are dealt to the parts


def configuration(found: Found) -> str:
    """Returns a whole configuration as YAML, with a comment on what was concluded. Raises BadInput without classes."""
    source, size = found.source, _tile_size(found)
    classes, codes, ignored, why = _classes(found)
    numbers = source.channels or tuple(range(1, len(source.bands) + 1))
    lines = [
        "# Made of what lies in the folder. Give bands and classes their names; leave out bands that you do not need.",
        "task: glacier",
        f"data: {{dir: {_text(str(found.root.resolve()))}}}",
        "training: {epochs: 60, effective_batch: 16, micro_batch: 16, evaluate_every_epochs: 2, log_every_steps: 10}",
        "optimizer: {lr: 1.0e-3, weight_decay: 1.0e-4}",
        "scheduler: {name: plateau, patience: 5, min_lr: 1.0e-6}",
        "workload:",
        "  source:",
        f"    bands: [{', '.join(map(_word, source.bands))}]",
        f"    band_files: [{', '.join(map(_text, source.band_files))}]"
        if source.band_files
        else f"    channels: [{', '.join(map(str, numbers))}]",
        f"    classes: [{', '.join(classes)}]{why}",
        f"    codes: [{', '.join(map(str, codes))}]",
    ]
    lines += [f"    ignored_codes: [{', '.join(map(str, ignored))}]"] if ignored else []
    lines += [f"    mask_band: {found.mask_band}"] if found.mask_band else []
    if layers := found.layers:
        lines.append(f"    mask_layers: [{', '.join(map(str, range(1, layers + 1)))}]")
    for key in ("images", "masks", "name_pattern"):
        if value := getattr(source, key):
            lines.append(f"    {key}: {_text(value)}")
    stride = 0 if len(found.scenes) < _FEW_SCENES else size // 2  # overlaps with held-out squares would be left out
    lines.append(f"  tiles: {{size: {size}, stride: {stride}}}")
    lines.append(f"  split: {_split(found)}")
    lines.append("  # The small network, for a CPU; without this line it is the U-Net with a ResNet-34.")
    lines.append("  model: {widths: [16, 16, 32, 64, 128], depths: [1, 1, 1, 1], decoder: [64, 32, 16, 16, 16]}")
    return "\n".join([*lines, *_limit(found, codes)])


def _limit(found: Found, codes: Sequence[int]) -> list[str]:
    """Returns the limit of bad inputs with the scenes that cannot be used as comments; nothing where all can."""
    bare = [one for one in found.seen if one.pixels[1] and one.codes and not {*codes} & {*one.codes}]
    read = [*found.broken, *(f"{one.scene.name}: no pixel has data" for one in found.seen if not one.pixels[1])]
    read += [f"{one.scene.name}: the mask labels no pixel" for one in bare]
    if not found.lacking and not read:
        return []
    head = f"  bad_input_limit: {len(found.lacking) + len(read)}   # scenes that cannot be used:"
    named = [*first_ten(found.lacking).splitlines(), *(f"  {printable(one)}" for one in read)]
    return [head, *(f"  # {line}" for line in named)]


def _text(value: str) -> str:
    """Returns a text as YAML reads it, whatever stands in it."""
    return json.dumps(value, ensure_ascii=False)


def _word(value: str) -> str:
    """Returns a name as YAML reads it: as it is where it is a plain word that is no number and no truth value."""
    return value if re.fullmatch(r"[A-Za-z][\w.-]*", value) and value.lower() not in _RESERVED else _text(value)


def _classes(found: Found) -> tuple[list[str], list[int], list[int], str]:
    """Returns names of classes, their codes, the codes that say that nothing is known, and a comment."""
    if layers := found.layers:
        return ["background", *(f"layer{n}" for n in range(1, layers + 1))], list(range(layers + 1)), [], ""
    counts = found.codes
    if not counts or len(counts) > MOST_CLASSES or any(code % 1 for code in counts):
        raise BadInput(
            f"The masks hold {len(counts):,} different values, from {min(counts, default=0):g} to "
            f"{max(counts, default=0):g}: these are no classes. Give masks of whole numbers, one for each class."
        )
    codes = sorted(int(code) for code in counts)
    marked = {int(one.nodata) for one in found.seen if one.nodata is not None and one.nodata == one.nodata}
    ignored = [code for code in codes if code < 0 or (code in marked and code != 0)]
    rest = [code for code in codes if code not in ignored]
    if rest[-1:] == [_UNKNOWN_CODE] and len(rest) > 2 and rest[-2] < len(rest) * 2:
        ignored.append(rest.pop())
    if len(rest) < 2:
        raise BadInput(
            f"The masks label one class alone: their values are {', '.join(map(str, codes))}. Training needs two "
            "classes or more."
        )
    names = _KNOWN.get(tuple(rest)) or ["background", *(f"class{code}" for code in rest[1:])]
    return list(names), rest, sorted(ignored), "   # background is the first one" if rest[0] else ""


def _tile_size(found: Found) -> int:
    """Returns the largest multiple of 32, at most 256, that the usual scene holds, or six times where there are few."""
    sides = sorted(min(one.height, one.width) for one in found.seen)
    side = sides[len(sides) // 2] // (_FEW_SCENES if len(found.scenes) < _FEW_SCENES else 1)
    return int(min(256, max(32, side // 32 * 32)))


def _split(found: Found) -> str:
    if found.parts and not any(scene.part for scene in found.scenes):
        return "{validation: 0.15, test: 0.15}   # add file: groups.csv, which --groups groups.csv writes of the lists"
    parts = {scene.part for scene in found.scenes} - {""}
    if parts:
        return "{validation: 0.15, test: 0.15}   # the folders of the parts go first; shares are for what they lack"
    if len(found.scenes) < _FEW_SCENES:
        return "{by: map, square: 2, validation: 0.15, test: 0.15}   # few scenes: squares of the map are dealt"
    if groups_of(found.seen):
        return "{validation: 0.15, test: 0.15}   # add file: groups.csv, which --groups groups.csv writes"
    return "{validation: 0.15, test: 0.15}"


def groups(found: Found) -> str:
    """Returns a CSV of scene,part,group, for workload.split.file: scenes that show the same ground are one group."""
    group = {name: names[0] for names in groups_of(found.seen) for name in names}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["scene", "part", "group"])
    for scene in found.scenes:
        part = scene.part or found.parts.get(scene.name, "")
        rows.writerow([scene.name, part, group.get(scene.name, scene.group)])
    return text.getvalue()
