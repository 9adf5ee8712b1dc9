"""The files of a repository that a session on Kaggle gets, without what must not leave this machine."""

import mmap
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lib.errors import BadInput, printable
from lib.text import amount
from trainbook.kaggle import client
from trainbook.run.settings import SET, Settings

MOST_BYTES = 100 * 10**6
# Names of files that hold credentials, beside `client.KEYS`
_SECRET_NAMES = (".env.*", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".pypirc", ".npmrc")
_EXAMPLES = ("*.example", "*.sample", "*.template")  # of credentials, without values
# What tokens look like: private keys, Hugging Face, GitHub, GitLab, AWS, OpenAI, Google, Slack, W&B, Kaggle
_TOKENS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bhf_[A-Za-z]{30,}|\bgh[pousr]_[A-Za-z0-9]{36}"
    rb"|\bgithub_pat_\w{50,}|\bglpat-[\w-]{20}|\bAKIA[0-9A-Z]{16}\b|\bsk-[A-Za-z0-9]{40,}"
    rb"|\bsk-(proj|ant)-[\w-]{40,}|\bAIza[\w-]{35}|\bxox[abprs]-[\w-]{10,}"
    rb"|WANDB_API_KEY\W{1,5}[0-9a-f]{40}|\"key\": *\"[0-9a-f]{32}\"|\bKGAT_\w{20,}"
)
_NO_CODE = re.compile(r"(^|/)(\.[^/]+|__pycache__|node_modules|outputs\.tar\.gz)(/|$)")
_LARGE_FILE = b"version https://git-lfs"  # how a pointer of Git LFS begins
_SHOWN = 5


@dataclass(frozen=True)
class Repository:
    """The files to send, by their paths below `root`; the command works in `inside` of it."""

    root: Path
    inside: str
    files: Mapping[str, Path]
    notes: Sequence[str]  # sentences on files that are not sent

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def read(config: Path, chosen: Settings) -> Repository:
    """Lists the files of the repository around a command's settings. Raises BadInput for what cannot be sent."""
    home = config.resolve().parent
    root = _top(home)
    here = Path.cwd().resolve()
    working = here if root and here.is_relative_to(root) else home
    notes: list[str] = []
    if root:
        names = _tracked(root, config.resolve(), notes)
    else:
        root = home
        names = _all_but_ignored(root, _kept(chosen))
    files = _regular(root, names, notes)
    if config.resolve().is_relative_to(root):
        files[config.resolve().relative_to(root).as_posix()] = config.resolve()
    inside = working.relative_to(root).as_posix()
    repository = Repository(root, inside, dict(sorted(files.items())), notes)
    _check_command(chosen.command, working, repository)
    _check_size(repository)
    refuse_credentials(repository.files)
    return repository


def _top(folder: Path) -> Path | None:
    """Returns the top of the git repository around a folder; None without one."""
    with _git_is_needed():
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--show-toplevel"],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    if not done.returncode:
        return Path(done.stdout.strip()).resolve()
    if any((place / ".git").exists() for place in (folder, *folder.parents)):
        raise BadInput(f"git cannot read the repository of {folder}: {printable(done.stderr)}")
    return None


@contextmanager
def _git_is_needed() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadInput(
            "git is not installed, and it lists what a repository tracks and ignores. Install it."
        ) from None


def _listed(root: Path, *options: str, git: Sequence[str] = ()) -> list[str]:
    command = ["git", "-C", str(root), *git, "ls-files", "-z", *options]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BadInput(f"git cannot list the files of {root} ({printable(done.stderr.strip())}).")
    return [name for name in done.stdout.split("\0") if name]


def _tracked(root: Path, config: Path, notes: list[str]) -> list[str]:
    names = _listed(root, "--recurse-submodules")
    others = _listed(root, "--others", "--exclude-standard")
    others = [name for name in others if not name.startswith("runs/") and root / name != config]
    if others:
        notes.append(f"Not tracked by git, and not sent: {_some(others)}. To send them: git add.")
    return names


def _all_but_ignored(root: Path, kept: str) -> list[str]:
    """Lists the files of a folder outside of any repository, without what its .gitignore names."""
    with tempfile.TemporaryDirectory() as empty:
        subprocess.run(["git", "init", "--quiet", "--bare", empty], check=True)
        git = ["--git-dir", empty, "--work-tree", str(root)]
        names = _listed(root, "--others", "--exclude-standard", git=git)
    environments = [f"{path.parent.relative_to(root)}/" for path in root.glob("*/pyvenv.cfg")]
    left_out = ("runs/", *([f"{kept}/"] if kept else []), *environments)
    return [name for name in names if not name.startswith(left_out) and not _NO_CODE.search(name)]


def _kept(chosen: Settings) -> str:
    """Returns the kept folder, or the one above those of several commands."""
    return chosen.keep.partition(SET)[0].rstrip("/")


def _regular(root: Path, names: Iterable[str], notes: list[str]) -> dict[str, Path]:
    files = {}
    missing, outside, pointers = [], [], []
    for name in names:
        path = root / name
        if not path.is_file():
            missing.append(name)
        elif not path.resolve().is_relative_to(root):
            outside.append(name)
        else:
            files[name] = path
            with path.open("rb") as file:
                if file.read(len(_LARGE_FILE)) == _LARGE_FILE:
                    pointers.append(name)
    if missing:
        notes.append(f"Tracked, and no files here: {_some(missing)}.")
    if outside:
        notes.append(f"Links that lead out of the repository, and not sent: {_some(outside)}.")
    if pointers:
        notes.append(f"Pointers of Git LFS, sent as such: {_some(pointers)}. First: git lfs pull.")
    return files


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


def _check_command(command: Sequence[str], working: Path, repository: Repository) -> None:
    """Raises BadInput if the command names a file that would not be sent."""
    sent = {path.resolve() for path in repository.files.values()}
    for word in command[1:]:
        path = working / word
        is_inside = path.resolve().is_relative_to(repository.root)
        if word and path.is_file() and (not is_inside or path.resolve() not in sent):
            raise BadInput(
                f"The command names {printable(word)}, which would not be sent: it is not tracked by "
                f"git. Run: git add {printable(word)}"
            )


def _check_size(repository: Repository) -> None:
    if not repository.files:
        raise BadInput(f"{repository.root} has no file to send. Run: git add .")
    if repository.size <= MOST_BYTES:
        return
    sizes = {name: path.stat().st_size for name, path in repository.files.items()}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
    listed = ", ".join(f"{printable(name)} ({amount(sizes[name])})" for name in largest)
    raise BadInput(
        f"The repository has {amount(repository.size)}, and at most {amount(MOST_BYTES)} are sent. The "
        f"largest: {listed}. Mount data as a data set (`inputs`), and untrack it: git rm --cached."
    )


def refuse_credentials(files: Mapping[str, Path]) -> None:
    """Raises BadInput for the first file that is made for credentials, or holds what looks like one."""
    for name, path in files.items():
        base = path.name
        is_example = any(fnmatch(base, pattern) for pattern in _EXAMPLES)
        if any(fnmatch(base, pattern) for pattern in _SECRET_NAMES) and not is_example:
            raise BadInput(
                f"{printable(name)} is a file for credentials. Run: git rm --cached "
                f"{printable(name)}; nothing was sent."
            )
        if line := _line_of_token(path):
            raise BadInput(
                f"{printable(name)}:{line} has what looks like a credential. Remove it, and withdraw it "
                "where it was made; nothing was sent."
            )
    client.refuse_in_files(files.values())


def _line_of_token(path: Path) -> int:
    """Returns the line of the first text that looks like a token; 0 without one."""
    if not path.stat().st_size:
        return 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        match = _TOKENS.search(content)
        return content[: match.start()].count(b"\n") + 1 if match else 0
