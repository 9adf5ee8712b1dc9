"""Trees of Python files: a folder, the standard library, an installed package; their files, and their hash."""

import errno
import hashlib
import importlib.metadata
import os
import re
import sysconfig
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lib.config.files import read_bytes
from lib.errors import BadInput, printable

# Patterns of omitted folders: tests of the standard library, installed packages, and generated files
EXCLUDED = (
    "test", "tests", "idle_test", "idlelib", "turtledemo", "site-packages", "dist-packages", "lib-dynload",
    "__pycache__", "_bundled", "config-*", "node_modules", ".*",
)  # fmt: skip
_EXCLUDED = re.compile("|".join(map(translate, EXCLUDED)))
_MOST_BYTES = 2**20  # of a source file: parsing takes up to 140 times as much memory, and 2.5 s
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_PACKAGE = re.compile(r"\s*([A-Za-z0-9][\w.-]*?)\s*(?:==\s*([\w.!+-]+(?:\.\*)?))?\s*")


@dataclass(frozen=True)
class Tree:
    """Python files below `root`, as sorted relative paths with forward slashes.

    `label` stands before them if a graph has several trees. `is_own` is False for files of Python's installers: their
    links may lead anywhere, and the user cannot mend them.
    """

    name: str
    root: Path
    files: tuple[str, ...]
    is_own: bool = True
    label: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of the names of all modules: the name of a root that is a package itself."""
        if self.is_own and (self.root / "__init__.py").is_file():
            return f"{self.root.resolve().name}."
        return ""

    def read(self, file: str) -> bytes:
        """Reads a source file. Raises OSError for large files, links out of the tree, and anything but a file."""
        path = self.root / file
        target = Path(os.path.realpath(path))
        if self.is_own and not target.is_relative_to(os.path.realpath(self.root)):
            raise OSError(errno.EINVAL, "it is a link out of the tree", str(path))
        return read_bytes(path, _MOST_BYTES)

    @cached_property
    def content(self) -> str:
        """A hash of the names and bytes of all files."""
        digest = hashlib.sha256()
        for file in (None, *self.files):
            try:
                content = self.read(file) if file else b""
            except OSError:  # listed as unreadable in a graph
                content = b""
            encoded = (file or self.prefix).encode("utf-8", "surrogateescape")
            digest.update(b"%d %d " % (len(encoded), len(content)) + encoded + content)
        return digest.hexdigest()


def folder(root: Path) -> Tree:
    """Returns the tree of the Python files under `root` but EXCLUDED folders. Raises BadInput without files."""
    if not root.is_dir():
        raise BadInput(f"There is no folder {root}. Give the folder of a tree of Python files.")
    paths = []
    for place, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not _EXCLUDED.fullmatch(name)]
        files = [Path(place, name) for name in names if name.endswith(".py")]
        paths += [file.relative_to(root).as_posix() for file in files]
    if not paths:
        raise BadInput(
            f"There is no .py file under {root} outside of folders of tests. Give a tree of Python files."
        )
    return Tree(root.resolve().name, root, tuple(sorted(paths)), is_own=root != STANDARD_LIBRARY)


def installed(packages: Sequence[str]) -> list[Tree]:
    """Returns the trees of packages, as `name==version` or `name`. Raises BadInput, a sentence for each wrong one."""
    trees = []
    wrong = []
    for text in packages:
        try:
            trees.append(_installed(text))
        except BadInput as error:
            wrong.append(str(error))
    if wrong:
        raise BadInput(
            "\n".join(["Packages of workload.packages are not as they are named there.", *wrong])
        )
    return trees


def name_of(text: str) -> str:
    parts = _PACKAGE.fullmatch(text)
    if parts:
        return re.sub(r"[-_.]+", "-", parts[1]).lower()
    return text


def _installed(text: str) -> Tree:
    parts = _PACKAGE.fullmatch(text)
    if parts is None:
        raise BadInput(
            f"{text!r} is no package with a version. Write it as name==1.2.3, name==1.2.* or name."
        )
    name = parts[1]
    wanted = parts[2] or ""
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(
            f"{name} is not installed in this Python. Run pip install {text.strip()!r}."
        ) from None
    if wanted and not _fits(package.version, wanted):
        raise BadInput(
            f"{name} has version {package.version} here, not {wanted}. Write {name}=={package.version} in "
            f"workload.packages, or run pip install '{name}=={wanted}'."
        )
    files = set()
    for path in package.files or ():
        folders = path.parts[:-1]
        is_excluded = ".." in path.parts or any(map(_EXCLUDED.fullmatch, folders))
        if path.suffix == ".py" and not is_excluded:
            files.add(path.as_posix())
    if not files:
        raise BadInput(
            f"{name} {package.version} lists no Python files of its own. Name its folder in data.dir."
        )
    root = Path(str(package.locate_file("")))
    return Tree(name_of(text), root, tuple(sorted(files)), is_own=False)


def _fits(version: str, wanted: str) -> bool:
    """Tells whether a version is the wanted one, such as 1.2.3 or 1.2.*; +cu128 need not be named."""
    if "+" not in wanted:
        version = version.partition("+")[0]
    if wanted.endswith(".*"):
        return f"{version}.".startswith(wanted[:-1])
    return version == wanted


class Job(NamedTuple):
    """A file to parse, its module, names of submodules; absolute imports of `moved` mean modules `within` that."""

    file: str
    module: str
    taken: frozenset[str]
    within: str = ""
    moved: frozenset[str] = frozenset()


class Sources:
    """One or several trees, read as one: imports between them are resolved.

    Their order does not matter. Where two have a module of one name, that of the later tree by name is called
    TREE.MODULE, and the imports in that tree mean its own.
    """

    def __init__(self, trees: Sequence[Tree]):
        self.trees = list(trees)
        if len(trees) > 1:
            labels: set[str] = set()
            self.trees.sort(key=lambda tree: (tree.name, tree.is_own, tree.content))
            for place, tree in enumerate(self.trees):
                label = _label(tree.name, labels)
                labels.add(label)
                self.trees[place] = replace(tree, label=label)

    def located(self, file: str) -> tuple[Tree, str]:
        """Returns the tree of a file of the graph, and the file's path in it."""
        label, _, inner = file.partition("/")
        if len(self.trees) == 1:
            return self.trees[0], file
        return next(tree for tree in self.trees if tree.label == label), inner

    def path(self, file: str) -> Path:
        tree, inner = self.located(file)
        return tree.root / inner

    def read(self, file: str) -> bytes:
        tree, inner = self.located(file)
        return tree.read(inner)

    @cached_property
    def content(self) -> str:
        text = "".join(f"{tree.label} {tree.content}\n" for tree in self.trees)
        return hashlib.sha256(text.encode()).hexdigest()

    def jobs(self) -> tuple[list[Job], list[tuple[str, str]]]:
        """Returns the files to parse, in the order of their names, and (file, reason) of those that are left out."""
        modules: dict[str, tuple[str, str, frozenset[str]]] = {}  # module -> file, within, moved
        skipped: list[tuple[str, str]] = []
        tops: set[str] = set()
        for tree in self.trees:
            before = f"{tree.label}/" if tree.label else ""
            own = _modules(tree, before, skipped)
            first = {name.partition(".")[0] for name in own}
            moved = frozenset(first & tops)
            within = tree.label if moved else ""
            while within in tops:
                within += "_"
            tops |= first
            for name, file in own.items():
                module = name
                if name.partition(".")[0] in moved:
                    module = f"{within}.{name}"
                modules[module] = (before + file, within, moved)
        parts: dict[str, set[str]] = defaultdict(set)
        for name in modules:
            steps = name.split(".")
            for depth in range(1, len(steps)):
                parts[".".join(steps[:depth])].add(steps[depth])
        jobs = []
        for name, (file, within, moved) in modules.items():
            jobs.append(Job(file, name, frozenset(parts[name]), within, moved))
        return sorted(jobs), skipped


def _modules(tree: Tree, before: str, skipped: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the files of a tree by module; adds those that are left out to `skipped`, with a reason."""
    modules: dict[str, str] = {}
    # Of a module and a package of one name the package counts, as in an import
    for file in sorted(tree.files, key=lambda file: (not file.endswith("__init__.py"), file)):
        name = tree.prefix + file.removesuffix(".py").replace("/", ".")
        name = name.removesuffix(".__init__")
        if printable(file) != file:
            reason = "its name is not valid Unicode, or has invisible characters"
            skipped.append((printable(before + file), reason))
        elif modules.setdefault(name, file) != file:
            skipped.append((before + file, f"{modules[name]} is the module {name} too"))
    return modules


def _label(name: str, taken: Container[str]) -> str:
    """Returns a label for a tree of this name, with a number if it is taken."""
    base = re.sub(r"\W+", "_", name.removeprefix("the ")).strip("_") or "tree"
    label = base
    number = 2
    while label in taken:
        label = f"{base}_{number}"
        number += 1
    return label
