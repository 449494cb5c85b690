"""SWDE: web pages and what their attributes are.

    swde            pages `<page>.htm` (or .html) anywhere below the paths, and groundtruth.jsonl beside or above them:
                    {"page": "0004", attribute: [values], ...}, with "site" where several sites have such a page
    swde-original   the archives as they are published: pages in `<vertical>/<vertical>-<site>(<pages>)/`, and
                    `groundtruth/<vertical>/<vertical>-<site>-<attribute>.txt` of tab-separated values

The text of a page is made by `page_text`, its values are folded in the same way, and a value that cannot be found in the
text verbatim is not asked. Several values of one attribute are all right; the first that the page holds is asked for.
`notes` counts values and how many of them were found.
"""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.datasets import attributes
from tasks.datasets.fields import Unfit, field, guarded, texts
from tasks.datasets.formats import Entries, Format
from tasks.datasets.page_text import folded, page_text
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_lines, only, opened, opening, text_of
from tasks.datasets.spans import distinct, find, found_first

PAGES = (".htm", ".html")
Pages = dict[str, list[tuple[str, Path]]]      # last name -> (whole name, place) of each page of that name
NAMES = ("page", "site")        # fields of groundtruth.jsonl that are no attributes


def fits(files: Files) -> bool:
    truths = only(files, ".jsonl").values()
    return bool(truths) and bool(only(files, *PAGES)) and all(
        isinstance(first, Mapping) and "page" in first for first in map(first_line, truths))


def read(files: Files, notes: Counter) -> Entries:
    """One record a page and attribute, in the order of the ground truth."""
    pages = _pages(files)
    for path in only(files, ".jsonl").values():
        for where, entry in json_lines(path):
            if isinstance(entry, Unusable):
                yield entry
            else:
                yield from guarded(where, _page, entry, where, pages, notes)


def fits_original(files: Files) -> bool:
    return bool(only(files, *PAGES)) and bool(_truths(files)) and not only(files, ".jsonl")


def read_original(files: Files, notes: Counter) -> Entries:
    """One record a page and attribute, in the order of the pages' names."""
    pages = _pages(files)
    sites = {name.split("/")[-2] for found in pages.values() for name, _ in found if "/" in name}
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for path, (vertical, site, attribute) in _truths(files).items():
        folder = _folder(f"{vertical}-{site}", sites)
        for number, line in enumerate(text_of(path).splitlines()[2:], start=3):
            yield from guarded(f"{path}, line {number}", _line, line, folder, attribute, entries)
    for (folder, name), entry in sorted(entries.items()):
        where = f"page {folder}/{name}"
        yield from guarded(where, _page, entry, where, pages, notes)


def _truths(files: Files) -> dict[Path, tuple[str, str, str]]:
    """Files of ground truth and the vertical, site and attribute that their first line names."""
    firsts = {path: opening(path).partition("\n")[0].rstrip("\r").split("\t") for path in only(files, ".txt").values()}
    return {path: tuple(first) for path, first in firsts.items() if len(first) == 3}


def _pages(files: Files) -> Pages:
    """Pages by their last name, so that one of a hundred thousand is found at once."""
    pages: Pages = defaultdict(list)
    for name, path in only(files, *PAGES).items():
        known = re.sub(r"\.html?$", "", name.removesuffix(".gz"), flags=re.IGNORECASE)
        pages[known.rpartition("/")[2]].append((known, path))
    return pages


def _folder(site: str, folders: Iterable[str]) -> str:
    """The pages of `book-amazon` lie in a folder such as `book-amazon(2000)`; without one, errors name the site."""
    return next((folder for folder in sorted(folders) if folder == site or folder.startswith(f"{site}(")), site)


def _line(line: str, folder: str, attribute: str, entries: dict) -> Iterator[Record]:
    """Put one line, `page, number of values, values` with tabs between, where its page's values are held."""
    name, *rest = line.rstrip("\r").split("\t")
    if not rest or not rest[0].isdigit():
        raise Unfit("wrong_type", f"{line[:80]!r} is not: page, number of values, values, with tabs between")
    values = [value for value in rest[1:] if value != "<NULL>"]
    entries.setdefault((folder, name), {"page": name, "site": folder})[attribute] = values
    yield from ()


def _page(entry: Any, where: str, pages: Pages, notes: Counter) -> Entries:
    name, site = field(entry, "page", str), str(entry.get("site") or "")
    identifier, path = _found(name, site, pages)
    with opened(path) as file:
        title, text = page_text(file.read())
    if not text:
        raise Unfit("empty_document", f"{path} has no text")
    for key in entry:
        if key not in NAMES:
            yield from guarded(f"{where}, page {name}, {key}", _record, entry, key, identifier, title, text, notes)


def _found(name: str, site: str, pages: Pages) -> tuple[str, Path]:
    wanted = f"{site}/{name}" if site else name
    hits = [(known, path) for known, path in pages.get(wanted.rpartition("/")[2], ()) if f"/{known}".endswith(f"/{wanted}")]
    if not hits:
        raise Unfit("no_document", f"there is no page {wanted!r} among {len(pages)}")
    if len(hits) > 1:
        raise Unfit("ambiguous_page", f"{wanted!r} is {hits[0][0]} and {hits[1][0]}; give the records a field 'site'")
    return hits[0]


def _record(entry: Mapping, key: str, identifier: str, title: str, text: str, notes: Counter) -> Iterator[Record]:
    values = distinct(plain(value) for value in texts(entry, key))
    if not values:
        raise Unfit("no_value", key)
    held = [value for value in values if find(text, value)]
    notes["values"] += len(values)
    notes["values_found"] += len(held)
    found = found_first(text, values)
    if found is None:
        raise Unfit("answer_not_in_document", f"{key}: {values[0]!r}")
    yield attributes.record(f"{identifier}/{key}", identifier, text, key.replace("_", " "), found[0], title=title,
                            span=found[1])


def plain(value: str) -> str:
    """A value as the text shows it: entities decoded, white space folded, without the colon that pages set before it."""
    return folded(html.unescape(value)).lstrip(":").strip()


SWDE = Format("swde", "pages as .htm(l) and groundtruth.jsonl (page, attribute: [values])", (".htm", ".html", ".jsonl"),
              fits, read, brings_cloze=True)
ORIGINAL = Format("swde-original", "the published archives: <vertical>-<site>(<n>)/*.htm and groundtruth/**/*.txt",
                  (".htm", ".html", ".txt"), fits_original, read_original, brings_cloze=True)
