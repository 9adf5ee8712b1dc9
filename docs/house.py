"""The rooms of the three houses, which of them import which, how many lines each has, and docs/house.svg.

python -m docs.house           draw it
python -m docs.house --check   exit code 1 where the picture is not that of the code
"""

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from trainbook import PUBLIC

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("lib", "workloads", "trainbook")
PICTURE = Path(__file__).with_name("house.svg")
# From the lowest floor to the highest: a room imports only from lower floors, and from itself.
FLOORS = (
    ("errors", "text", "private"),
    ("untrusted",),
    ("config",),
    ("machine", "ranks"),
    ("task", "checkpoint", "report"),
    ("training",),
    ("planner",),
    ("prepared",),
    ("dependencies", "outputs"),
    ("run", "memory"),
    ("keep",),
    ("finishing",),
    ("hf", "lightning", "accelerate", "ultralytics", "published"),
    ("supervised",),
    ("launch",),
    ("command", "doctor", "notebook", "new", "fits", "building"),
    ("kaggle",),
    ("commands",),
    ("codegraph",),
    ("graphmer", "glacier", "legal", "vqa", "chat", "competition"),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
EXAMPLES = (
    ROOT / "trainbook" / "new" / "examples"
)  # texts that a user is given, and no part of a house
FILES = sorted(
    path for house in HOUSES for path in (ROOT / house).rglob("*.py")
    if EXAMPLES not in path.parents and path.relative_to(ROOT / house).as_posix() not in ("__init__.py", "__main__.py")
)  # fmt: skip
COLOURS = {"lib": "#e0ecff", "workloads": "#e3f4e1", "trainbook": "#fdf0d5"}
WIDTH = 620
STOREY = 62
BOX = (118, 30)  # pixels


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path) -> set[str]:
    """Returns the modules that a file imports, as dotted names without their house: machine.disk, config."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HOUSES:
            for alias in node.names:
                module = PUBLIC.get(alias.name, "") if node.module == "trainbook" else ""
                house, *inner = (module or node.module).split(".")
                whole = [*inner, alias.name]
                place = ROOT.joinpath(house, *whole)
                is_module = place.is_dir() or place.with_suffix(".py").is_file()
                names.add(".".join(whole if is_module else inner))
    return names - {""}


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Returns the pairs of rooms of which the first imports the second."""
    pairs = {(room_of(path), name.split(".")[0]) for path in FILES for name in imported(path)}
    return frozenset((room, other) for room, other in pairs if room != other)


@cache
def drawn() -> tuple[tuple[str, str], ...]:
    """Returns the arrows of the picture: those that do not follow from others."""
    below = {room: {other for one, other in arrows() if one == room} for room in FLOOR}

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset().union(below[room], *(reached(other) for other in below[room]))

    return tuple(
        (room, other) for room in FLOOR for other in sorted(below[room])
        if not any(other in reached(between) for between in below[room] - {other})
    )  # fmt: skip


def lines() -> Counter[str]:
    """Returns the number of lines of each house and room, as `lib` and `lib/training`: every line of every *.py."""
    counts: Counter[str] = Counter()
    for house in HOUSES:
        for path in (ROOT / house).rglob("*.py"):
            size = len(path.read_text("utf-8").splitlines())
            counts[house] += size
            counts["/".join(path.relative_to(ROOT).parts[:2])] += size
    return counts


def picture() -> str:
    """Returns the house as SVG: a box for each room, an arrow for each import that does not follow from others."""
    places = {
        room: (
            WIDTH * (number + 1) // (len(rooms) + 1),
            STOREY * (len(FLOORS) - floor) - STOREY // 2,
        )
        for floor, rooms in enumerate(FLOORS)
        for number, room in enumerate(rooms)
    }
    width, height = BOX
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {STOREY * len(FLOORS)}" width="{WIDTH}" '
        'font-family="monospace" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<defs><marker id="head" markerWidth="8" markerHeight="6" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L8,3 L0,6 z" fill="#64748b"/></marker></defs>',
    ]
    for room, other in drawn():
        (x1, y1), (x2, y2) = places[room], places[other]
        y1 = y1 + height // 2
        y2 = y2 - height // 2
        bend = (y2 - y1) // 2
        elements.append(
            f'<path d="M{x1},{y1} C{x1},{y1 + bend} {x2},{y2 - bend} {x2},{y2}" fill="none" stroke="#64748b" '
            'marker-end="url(#head)"/>'
        )
    for room, (x, y) in places.items():
        colour = next(COLOURS[house] for house in HOUSES if list((ROOT / house).glob(f"{room}*")))
        is_package = any((ROOT / house / room).is_dir() for house in HOUSES)
        elements += [
            f'<rect x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="5" '
            f'fill="{colour}" stroke="#334155"/>',
            f'<text x="{x}" y="{y + 4}" text-anchor="middle" fill="#0f172a">{room}{"/" if is_package else ""}</text>',
        ]
    return "\n".join([*elements, "</svg>", ""])


def main(arguments: list[str]) -> int:
    fresh = picture()
    if PICTURE.is_file() and PICTURE.read_text("utf-8") == fresh:
        return 0
    if "--check" in arguments:
        print(
            "docs/house.svg is not the picture of the code as it is. This mends it:\n    make docs"
        )
        return 1
    PICTURE.write_text(fresh, "utf-8")
    print("wrote docs/house.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
