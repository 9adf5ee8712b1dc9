"""The shape of the three houses: imports point downwards, rooms have no circles, and all of it stays small."""

import ast

from docs import house
from docs.house import FILES, FLOOR, imported, room_of, tree_of
from tests.conftest import ROOT

# Lines of each house and room, every line of every *.py: a number here grows by decision alone
BUDGETS = {
    "lib": 15_180,
    "lib/checkpoint": 860, "lib/command.py": 115, "lib/config": 815, "lib/dependencies.py": 75, "lib/doctor": 360,
    "lib/errors.py": 75, "lib/launch": 1_675, "lib/machine": 925, "lib/notebook": 640, "lib/planner": 1_925,
    "lib/ranks": 305, "lib/report": 1_305, "lib/scores.py": 70, "lib/supervised": 2_225, "lib/task": 890,
    "lib/text.py": 110, "lib/training": 2_705, "lib/untrusted.py": 115,
    "workloads": 10_715,
    "workloads/codegraph": 1_440, "workloads/glacier": 2_890, "workloads/graphmer": 2_750, "workloads/legal": 1_355,
    "workloads/vqa": 1_360, "workloads/chat": 925,
    "trainbook": 2_600,
    "trainbook/commands.py": 165, "trainbook/fits": 270, "trainbook/kaggle": 1_350, "trainbook/new": 405,
    "trainbook/notebooks": 380,
}  # fmt: skip
TESTS = {"tests": 22_090, "tests/bench and tests/faults": 3_730}


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} <= FLOOR.keys()


def test_imports_point_downwards():
    for path in FILES:
        here = room_of(path)
        upward = {n for n in imported(path) if (room := n.split(".")[0]) != here and FLOOR[room] >= FLOOR[here]}
        assert not upward, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upward))}, which is not below {here}"


def test_lib_names_no_workload():
    workloads = {path.parent.name for path in (ROOT / "workloads").glob("*/__init__.py")}
    for path in FILES:
        if path.is_relative_to(ROOT / "lib"):
            names = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
            words = {node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)}
            assert not workloads & (names | {word for word in words if isinstance(word, str)}), path


def test_rooms_have_no_circles_inside():
    """Within a room a file imports another one before it is imported by it, however long the way."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]) for path in FILES}
    module = {name.removesuffix(".__init__"): path for path, name in names.items()}
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
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in house.HOUSES:
                for alias in node.names:
                    assert alias.asname != f"{alias.name}s", f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_the_house_has_few_rooms_floors_and_arrows():
    """Sizes that a newcomer can hold in mind; before there were packages, 46 rooms, 14 floors and 222 arrows."""
    rooms = {room_of(path) for path in FILES if path.is_relative_to(ROOT / "lib")}
    arrows = {(room, other) for room, other in house.arrows() if room in rooms}
    assert len(rooms) <= 18 and len({FLOOR[room] for room in rooms}) <= 9 and len(arrows) <= 86


def test_each_room_stays_within_its_budget():
    counts = house.lines()
    over = {room: counts[room] for room, most in BUDGETS.items() if counts[room] > most}
    assert not over, f"{over} lines, of {BUDGETS}: take something out, or decide on a larger budget here"
    rooms = {room for room in counts if not room.endswith("__.py")}
    assert rooms == BUDGETS.keys(), "each room has a budget"


def test_tests_stay_within_their_budget():
    counts = dict.fromkeys(TESTS, 0)
    for path in (ROOT / "tests").rglob("*.py"):
        is_program = path.relative_to(ROOT / "tests").parts[0] in ("bench", "faults")
        counts["tests/bench and tests/faults" if is_program else "tests"] += len(path.read_text("utf-8").splitlines())
    assert all(counts[name] <= most for name, most in TESTS.items()), f"{counts}, of {TESTS}"


def test_files_and_functions_stay_small():
    for path in FILES:
        lines = len(path.read_text("utf-8").splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines: it holds two ideas"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                size = node.end_lineno - node.lineno + 1
                most = 80 if node.name == "train" and path == ROOT / "lib" / "training" / "loop.py" else 40
                assert size <= most, f"{path.relative_to(ROOT)}: {node.name} has {size} lines"


def test_the_picture_is_that_of_the_code():
    assert house.main(["--check"]) == 0


def test_the_pictures_arrows_imply_all_others():
    below = {room: {other for one, other in house.drawn() if one == room} for room in FLOOR}

    def reached(room):
        return set(below[room]).union(*(reached(other) for other in below[room]))

    assert house.arrows() <= {(room, other) for room in FLOOR for other in reached(room)}
