"""Whether HTML is balanced: a browser mends what is not, and each in another way."""

from html.parser import HTMLParser
from unittest import mock

from nbconvert.exporters import html as nbconvert

_EMPTY = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
}


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.opened = []
        self.mistakes = []

    def handle_starttag(self, tag, attrs):
        if tag not in _EMPTY:
            self.opened.append((tag, self.getpos()))

    def handle_endtag(self, tag):
        if self.opened and self.opened[-1][0] == tag:
            self.opened.pop()
        elif tag not in _EMPTY:
            self.mistakes.append(f"</{tag}> at {self.getpos()} closes {self.opened[-1:]}")


def unbalanced(html: str) -> list[str]:
    """Returns the tags that close another one, and those that are never closed."""
    parser = _Tags()
    parser.feed(html)
    parser.close()
    return [
        *parser.mistakes,
        *(f"<{tag}> at {place} is never closed" for tag, place in parser.opened),
    ]


class _Unmended(str):
    def __new__(cls, html, features):
        return super().__new__(cls, html)

    def select(self, _):
        return ()


def page_of(notebook) -> str:
    """Returns nbconvert's page of a notebook before BeautifulSoup closes what is open, somewhere."""
    with mock.patch.object(nbconvert, "BeautifulSoup", _Unmended, create=True):
        return nbconvert.HTMLExporter().from_notebook_node(notebook)[0]
