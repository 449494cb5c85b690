"""A report as one HTML page that needs nothing beside it: text and tables from report.md, its plots inside.

Tables scroll sideways, keep their head in view, sort by a click on a column and filter by a word. Works from a disk, in a
mail and in MLflow's page of artifacts; that one shows it in a frame that follows no link, not even one to a heading, so
that the page goes to its headings itself and says where the runs are to be found.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

MANY = 8            # rows from which a table gets a filter
STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --dim: #667; --head: #f3f5f7; --link: #0b62a8; --page: #fff; --ink: #1b1f24; }
@media (prefers-color-scheme: dark) { :root { --line: #3a4149; --dim: #9aa4ae; --head: #23282e; --link: #6db3f2;
  --page: #16191d; --ink: #e4e7ea; } img { background: #fff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; padding: 1.5rem 2rem;
  max-width: 78rem; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.6rem 0 .4rem; } a { color: var(--link); } code { background: var(--head); padding: 0 .25em; }
nav { columns: 18rem; font-size: 90%; margin: 1rem 0; } nav a { display: block; text-decoration: none; }
nav a.deep { color: var(--dim); }
img { max-width: 100%; display: block; margin: 1rem 0; border: 1px solid var(--line); }
.table { overflow: auto; max-height: 34rem; border: 1px solid var(--line); margin: .4rem 0; }
table { border-collapse: collapse; font-size: 88%; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--head); cursor: pointer; text-align: left; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); } th[data-way]::after { content: " " attr(data-way); }
input { font: inherit; padding: .15rem .4rem; margin: .3rem 0; } .dim { color: var(--dim); font-size: 90%; }
"""
SCRIPT = """
const number = text => { const m = text.replace(/,/g, '').replace('\\u2212', '-').match(/^[+-]?\\d+(\\.\\d+)?(e[+-]?\\d+)?/i);
  return m ? parseFloat(m[0]) * ({kB: 1e3, MB: 1e6, GB: 1e9}[(text.match(/[kMG]B/) || [''])[0]] || 1) : null; };
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0];
  table.tHead.addEventListener('click', event => {
    const head = event.target.closest('th'); if (!head) return;
    const up = head.dataset.way !== '\\u25b4', at = head.cellIndex;
    for (const other of table.tHead.querySelectorAll('th')) delete other.dataset.way;
    head.dataset.way = up ? '\\u25b4' : '\\u25be';
    [...body.rows].sort((a, b) => { const [x, y] = [a, b].map(row => row.cells[at].textContent.trim());
      const [p, q] = [number(x), number(y)];
      const order = p === null || q === null ? (p === null) - (q === null) || x.localeCompare(y) : p - q;
      return up ? order : -order; }).forEach(row => body.append(row)); });
  const filter = table.parentElement.previousElementSibling;
  if (filter && filter.matches('input')) filter.addEventListener('input', () => { for (const row of body.rows)
    row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase()); });
}
for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener('click', event => {
  const there = document.getElementById(link.hash.slice(1)); if (!there) return;
  event.preventDefault(); there.scrollIntoView(); });
for (const note of document.querySelectorAll('.framed')) note.hidden = window === window.top;
"""
FRAMED = ("No link to a run opens from within this frame: they are the child runs in the tab Overview, or open from the "
          "downloaded page.")


def page(folder: Path, title: str, runs: Mapping[str, str] | None = None) -> str:
    """The page of the report in `folder`: report.md and the plots that it shows.

    runs: words -> address of a run, listed at the end
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse((folder / "report.md").read_text(encoding="utf-8"))
    headings: list[tuple[int, str, str]] = []
    for token, following in zip(tokens, [*tokens[1:], None]):
        if token.type == "heading_open" and following is not None:
            name = f"s{len(headings)}"
            token.attrSet("id", name)
            headings.append((int(token.tag[1]), name, following.content))
        for child in token.children or ():
            if child.type == "image":
                child.attrSet("src", _inlined(folder, str(child.attrs.get("src", ""))))
                child.attrSet("alt", child.content)
    body = _tables(parser.renderer.render(tokens, parser.options, {}))
    head, end, rest = body.partition("</h1>\n")
    head, rest = (head + end, rest) if end else ("", body)
    listed = _runs(runs or {})
    if listed:
        headings.append((2, "runs", "Runs in MLflow"))
    return (f"<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{html.escape(title)}</title>\n"
            f"<meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style></head>\n<body>\n"
            f"{head}{_contents(headings)}{rest}{listed}<script>{SCRIPT}</script>\n</body>\n</html>\n")


def _inlined(folder: Path, name: str) -> str:
    """The picture itself as an address; a name that leaves the folder, or that is not there, stays a name."""
    path = folder / unquote(name)
    if path.parent != folder or not path.is_file():
        return name
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _tables(text: str) -> str:
    """Every table in a box of its own; a long one below a field that filters it."""
    def boxed(found: re.Match[str]) -> str:
        rows = found[0].count("<tr>") - 1
        field = f'<input type="search" placeholder="filter {rows} rows">\n' if rows >= MANY else ""
        return f'{field}<div class="table">{found[0]}</div>'
    return re.sub(r"<table>.*?</table>", boxed, text, flags=re.DOTALL)


def _contents(headings: list[tuple[int, str, str]]) -> str:
    links = [f'<a href="#{name}"{" class=deep" if level > 2 else ""}>{html.escape(words.replace("`", ""))}</a>'
             for level, name, words in headings if level > 1]
    return f"<nav>{''.join(links)}</nav>\n" if len(links) > 3 else ""


def _runs(runs: Mapping[str, str]) -> str:
    if not runs:
        return ""
    lines = "".join(f'<li><a href="{html.escape(address)}" target="_blank" rel="noopener">{html.escape(words)}</a></li>\n'
                    for words, address in runs.items())
    return f'<h2 id="runs">Runs in MLflow</h2>\n<p class="framed dim" hidden>{FRAMED}</p>\n<ul>\n{lines}</ul>\n'
