"""What mkdocs needs beside mkdocs.yml: the front page from README.md, a page for each notebook, and links out of docs/.

A link to a file outside of docs/ leads to the published repository (pyproject.toml). Where there is none it is text.
"""

import re
import tomllib
from pathlib import Path, PurePosixPath

from trainbook.building.source import with_shared

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config):
    """Adds the pages that the navigation does not name to its workloads, and the notebooks behind them."""
    named = set(re.findall(r"[\w/]+\.md", str(config.nav)))
    section = next(
        part["Workloads"] for part in config.nav if isinstance(part, dict) and "Workloads" in part
    )
    section += sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    sources = sorted((ROOT / "notebooks_src").glob("[0-9]*.py"))
    config.nav.append({"Notebooks": [f"notebooks/{source.stem}.md" for source in sources]})
    return config


def on_files(files, config):
    """Adds README.md as the front page, and the text of each notebook without the cell that carries the library."""
    from mkdocs.structure.files import File

    text = _moved((ROOT / "README.md").read_text("utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    for source in sorted((ROOT / "notebooks_src").glob("[0-9]*.py")):
        files.append(
            File.generated(
                config, f"notebooks/{source.stem}.md", content=readable(source.read_text("utf-8"))
            )
        )
    return files


def on_page_markdown(markdown, page, config, files):
    """Mends the links of a page that lead to what the site does not have."""
    pages = {file.src_uri for file in files if file.inclusion.is_included()}
    return mended(markdown, PurePosixPath(page.file.src_uri).parent, pages, _repository())


def mended(markdown: str, folder: PurePosixPath, pages: set[str], repository: str) -> str:
    """Returns a page of a folder below docs/ with its links out of the site turned to the repository, or to text."""

    def link(found: re.Match) -> str:
        name, _, anchor = found[3].partition("#")
        own = re.sub(
            r"^\.\./notebooks_src/(\w+)\.py$", r"notebooks/\1.md", _resolved(folder / name)
        )
        own = "index.md" if own == "../README.md" else own
        if own in pages and own != _resolved(
            folder / name
        ):  # written elsewhere, and a page of the site
            return f"[{found[2]}]({'../' * len(folder.parts)}{own}{'#' * bool(anchor)}{anchor})"
        if not name or "://" in name or _resolved(folder / name) in pages:
            return found[0]
        if not repository or found[1]:
            return found[2]
        path = _resolved(PurePosixPath("docs") / folder / name)
        return f"[{found[2]}]({repository}/blob/main/{path}{'#' * bool(anchor)}{anchor})"

    parts = CODE.split(markdown)
    blocks = CODE.findall(markdown)
    texts = [LINK.sub(link, part) for part in parts]
    return "".join(text + block for text, block in zip(texts, [*blocks, ""], strict=True))


def readable(source: str) -> str:
    """Returns the text of a notebook's percent source as Markdown: its header and its carrier cell are left out."""
    parts = []
    for cell in re.split(r"^# %% ?", with_shared(source), flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append("\n".join(re.sub(r"^# ?", "", line) for line in body.strip().splitlines()))
        elif "carrier" not in head:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _moved(text: str) -> str:
    """Returns README.md as it would stand in docs/."""
    return LINK.sub(lambda found: f"{found[1]}[{found[2]}]({_from_docs(found[3])})", text)


def _from_docs(target: str) -> str:
    if "://" in target or target.startswith("#"):
        return target
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"../{target}"


def _resolved(path: PurePosixPath) -> str:
    """Returns a path without `..` in its middle; what leads out of docs/ begins with one."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return project["tool"]["trainbook"]["repository"].rstrip("/")
