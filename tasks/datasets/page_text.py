"""The text of an HTML page as a reader sees it: blocks are lines, scripts and styles are gone, entities are characters.

Parsed by lxml through Beautiful Soup, so that unclosed tags, unquoted attributes and stray encodings are its business.
"""

from __future__ import annotations

import re

INVISIBLE = {"script", "style", "noscript", "template", "head", "iframe", "object", "svg", "math"}
BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "legend", "li",
    "main", "nav", "ol", "optgroup", "option", "p", "pre", "section", "select", "table", "tbody", "tfoot", "thead", "title",
    "tr", "ul",
}
CELLS = {"td", "th"}


def page_text(html: bytes | str) -> tuple[str, str]:
    """(title, text) of a page; bytes are decoded by what the page says of itself."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "lxml")
    title = folded(soup.title.get_text()) if soup.title else ""
    pieces: list[str] = []
    _collect(soup, pieces)
    lines = (folded(line) for line in "".join(pieces).split("\n"))
    return title, "\n".join(line for line in lines if line)


def folded(text: str) -> str:
    """Runs of white space, no-break and zero-width blanks as one blank, none at the ends."""
    return re.sub(r"\s+", " ", re.sub("[\u200b\u200c\u200d\ufeff\u00ad]", "", text)).strip()


def _collect(root, pieces: list[str]) -> None:
    """Append the text below `root` in order, a line end around each block; white space of the source is one blank.

    Walks with a list of its own: pages nest deeper than Python calls may.
    """
    from bs4 import NavigableString, Tag
    from bs4.element import PreformattedString

    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str) and not isinstance(node, NavigableString):
            pieces.append(node)
        elif isinstance(node, PreformattedString):      # comments, doctypes, processing instructions
            continue
        elif isinstance(node, NavigableString):
            pieces.append(re.sub(r"\s+", " ", node))
        elif isinstance(node, Tag) and node.name not in INVISIBLE:
            around = "\n" if node.name in BLOCKS else " " if node.name in CELLS else ""
            waiting += [around, *reversed(node.contents), around]
