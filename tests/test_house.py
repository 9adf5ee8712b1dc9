"""The shape of the three houses: imports point downwards, rooms have no circles, and all of it stays small."""

import ast
from pathlib import Path

import pytest

from docs import house
from docs.house import FILES, FLOOR, imported, room_of, tree_of
from tests.conftest import ROOT

# Nodes of the syntax tree of each house, without docstrings: they do not change when a statement is written over more
# lines. Growth beyond a number is a decision, with its reason here.
# 2026-11-28: readers of tables, pictures and conversations came in: they read what they are given, or name it. Then
# files moved: lib is the loop with the memory helpers, trainbook what people import. A command for scripts (run, keep)
# came in, and statements were split, which costs about three nodes each.
# 2026-11-29: simple methods became strong (words, characters, forests, bounded time): 7,000 nodes of trainbook.
# The same day a gate by paired draws, verdicts in sentences and calibrated probabilities: 4,000 more; columns of
# tables, members in one network and pieces of published encoders: 2,800 more. Workloads: graphmer asks jedi first,
# and its probabilities are fitted on what jedi judged in other trees.
# Any command goes to Kaggle with its repository, runs in a cell, and over two cards: trainbook +10,800.
# 2026-11-29, published models and competitions: folds of any task with their averages, scores and submissions +10,200,
# encoders of pictures and sentences with their vectors in simple methods +6,500, columns as they are and metrics by
# their names +4,100, language models, sequences, a schedule without a horizon +4,600, GGUF and one load of a base +700,
# dates in tables and folds in notebook 07 +600.
# lib reads wheels and GGUF, and keeps a CPU from half precision +2,500. Workloads: competition, by settings alone
# +9,900; an encoder beside boosting (glacier) +3,200, in attention (vqa) +4,000.
NODES = {"lib": 99_500, "trainbook": 209_500, "workloads": 168_000}
# Nodes a statement, and the share of statements above `LARGE`: what no width of a line changes. Peers have 11 to 13 and
# 2 to 4 %. These values only fall.
LARGE = 30
DENSITY = {"lib": (12.5, 0.02), "trainbook": (13.0, 0.025), "workloads": (14.1, 0.025)}
LONGEST_FUNCTION = 60
LONGEST_LOOP = 80  # the training loop is one function that reads from top to bottom
HEADS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
INNER = (ast.stmt, ast.excepthandler, ast.match_case)


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} <= FLOOR.keys()


def test_imports_point_downwards():
    for path in FILES:
        here = room_of(path)
        upward = {
            n
            for n in imported(path)
            if (room := n.split(".")[0]) != here and FLOOR[room] >= FLOOR[here]
        }
        assert not upward, (
            f"{path.relative_to(ROOT)} imports {', '.join(sorted(upward))}, which is not below {here}"
        )


def test_lib_names_no_workload():
    workloads = {path.parent.name for path in (ROOT / "workloads").glob("*/__init__.py")}
    for path in FILES:
        if path.is_relative_to(ROOT / "lib"):
            names = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
            words = {
                node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)
            }
            assert not workloads & (names | {word for word in words if isinstance(word, str)}), path


def test_rooms_have_no_circles_inside():
    """Within a room a file imports another one before it is imported by it, however long the way."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]) for path in FILES}
    module = {name.removesuffix(".__init__"): path for path, name in names.items()}
    arrows = {
        name: {other for other in imported(path) if other in module}
        for name, path in module.items()
    }

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
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] in house.HOUSES
            ):
                for alias in node.names:
                    assert alias.asname != f"{alias.name}s", (
                        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
                    )


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def nodes_of(statement: ast.stmt) -> int:
    """Counts the nodes of a statement without the statements inside it."""
    count = 0
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, INNER)]
    return count


def files_of(name: str) -> list[Path]:
    return sorted(
        path for path in (ROOT / name).rglob("*.py") if house.EXAMPLES not in path.parents
    )


def statements_of(name: str) -> list[int]:
    """Lists the sizes of a house's statements in nodes, without imports, heads and docstrings."""
    statements = [
        node
        for path in files_of(name)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.stmt)
    ]
    return [
        nodes_of(node)
        for node in statements
        if not isinstance(node, HEADS) and not is_docstring(node)
    ]


@pytest.mark.parametrize("name", NODES)
def test_a_house_stays_within_its_size(name):
    trees = [tree_of(path) for path in files_of(name)]
    docstrings = sum(is_docstring(node) for tree in trees for node in ast.walk(tree))
    nodes = sum(1 for tree in trees for _ in ast.walk(tree)) - 2 * docstrings
    assert nodes <= NODES[name], (
        f"{name} has {nodes} nodes: take something out, or decide on a larger size here"
    )


@pytest.mark.parametrize("name", DENSITY)
def test_statements_do_not_become_denser(name):
    sizes = statements_of(name)
    mean = sum(sizes) / len(sizes)
    share = sum(size > LARGE for size in sizes) / len(sizes)
    most, most_share = DENSITY[name]
    assert mean <= most, f"{name}: {mean:.2f} nodes a statement, {share:.2%} above {LARGE}"
    assert share <= most_share, f"{name}: {mean:.2f} nodes a statement, {share:.2%} above {LARGE}"


def test_functions_stay_small():
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                size = node.end_lineno - node.lineno + 1
                is_loop = node.name == "train" and path == ROOT / "lib" / "training" / "loop.py"
                most = LONGEST_LOOP if is_loop else LONGEST_FUNCTION
                assert size <= most, f"{path.relative_to(ROOT)}: {node.name} has {size} lines"


def test_the_picture_is_that_of_the_code():
    assert house.main(["--check"]) == 0


def test_the_pictures_arrows_imply_all_others():
    below = {room: {other for one, other in house.drawn() if one == room} for room in FLOOR}

    def reached(room):
        return set(below[room]).union(*(reached(other) for other in below[room]))

    assert house.arrows() <= {(room, other) for room in FLOOR for other in reached(room)}
