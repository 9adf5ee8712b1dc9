"""The shape of lib: imports point downwards, rooms have no circles, files and functions stay small."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIB = ROOT / "lib"
# From the lowest floor to the highest, as in docs/design.md: a room imports only what stands on a lower floor.
FLOORS = (
    ("errors", "text", "scores"),
    ("config", "dependencies"),
    ("machine", "ranks"),
    ("task", "checkpoint", "report"),
    ("training", "supervised"),
    ("planner", "tasks"),
    ("launch",),
    ("doctor", "notebook"),
    ("kaggle",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(path for path in LIB.rglob("*.py") if path.parent != LIB or path.name != "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(LIB).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path) -> set[str]:
    """The modules below lib that a file imports, as dotted names without `lib.`: `machine.disk`, `config`."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
            inner = node.module.split(".")[1:]
            for alias in node.names:
                whole = [*inner, alias.name]
                is_module = LIB.joinpath(*whole).is_dir() or LIB.joinpath(*whole).with_suffix(".py").is_file()
                found.add(".".join(whole if is_module else inner))
    return found - {""}


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} <= FLOOR.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LIB)))
def test_imports_point_downwards(path):
    here = room_of(path)
    upward = {name for name in imported(path) if (room := name.split(".")[0]) != here and FLOOR[room] >= FLOOR[here]}
    assert not upward, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upward))}, which is not below lib/{here}"


def test_a_workload_knows_no_other():
    for path in FILES:
        if room_of(path) == "tasks":
            own = path.relative_to(LIB / "tasks").parts[0]
            others = {name for name in imported(path) if name.startswith("tasks.") and name.split(".")[1] != own}
            assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_rooms_have_no_circles_inside():
    """Within a room a file imports another one before it is imported by it, however long the way."""
    module = {".".join(path.relative_to(LIB).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    arrows = {name: {other for other in imported(path) if other in module} for name, path in module.items()}

    def reach(name: str, seen: tuple[str, ...]) -> None:
        assert name not in seen, f"a circle: {' -> '.join([*seen, name])}"
        if name not in done:
            for other in arrows[name] - {name}:
                reach(other, (*seen, name))
            done.add(name)

    done: set[str] = set()
    for name in module:
        reach(name, ())


def test_no_module_is_imported_under_a_plural_to_dodge_a_name():
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
                for alias in node.names:
                    assert not (alias.asname or "").endswith("s"), f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def arrows_between_rooms() -> set[tuple[str, str]]:
    return {(room_of(path), name.split(".")[0]) for path in FILES for name in imported(path)} - {
        (room, room) for room in FLOOR
    }


def test_the_house_has_few_rooms_and_arrows():
    """Sizes that a newcomer can hold in mind; the first house had 46 rooms and 222 arrows in lib."""
    assert len({room_of(path) for path in FILES}) <= 22
    assert len(arrows_between_rooms()) <= 90
