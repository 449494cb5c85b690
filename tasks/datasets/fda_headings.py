"""The attributes of an FDA 510(k) decision summary, read off its lettered and numbered headings.

A heading is a line `A. 510(k) Number:` or `2. Classification:` (with or without what it heads on the same line), in newer
summaries `A 510(k) Number` without the point. Its value is taken where it is one line: what follows over several lines
is a list or wrapped text, and no line of it alone is the answer. Marks of a page (a bare number, `Page 2 of 4`, the
agency's address) between a heading and the next one do not count as lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADING = re.compile(r"^(?:[A-Z]|\d{1,2})\.[ \t]*(?P<name>[A-Z0-9][^\n:]{3,60}?)[ \t]*(?::[ \t]*(?P<rest>[^\n]*))?$",
                     re.MULTILINE)
NEWER = re.compile(     # without a point any capital would begin a heading: only those that summaries have
    r"^(?:[A-Z]|[IVX]{1,4}) (?P<name>510\(k\) Number|Applicant|Proprietary and Established Names|Regulatory Information"
    r"|Purpose for Submission|Measurand|Type of Test|Predicate (?:Device Name|510\(k\) Number)\(s\)"
    r"|Comparison with Predicate\(s\)|(?:Background|Substantial Equivalence) Information|Submission/Device Overview"
    r"|Intended Use[^\n:]{0,30}|Device Description)[ \t]*(?::[ \t]*(?P<rest>[^\n]*))?$", re.MULTILINE)
PAGE_MARK = re.compile(r"^(?:\d{1,3}|(?:k\d{6} *[-–] *)?page \d+(?: of \d+)?|food and drug administration"
                       r"|10903 new hampshire avenue|silver spring, md [\d-]+|www\.fda\.gov)$", re.IGNORECASE)
NOTHING = re.compile(r"^(?:n/?a|not applicable|none|same|see .*|unknown)[.]?$", re.IGNORECASE)
ATTRIBUTES = {      # attribute -> what its heading says, number, case and the plural in brackets aside
    "510(k) number": r"510\(k\) number",
    "purpose for submission": r"purpose (?:for|of) (?:the )?submission",
    "measurand": r"measurand|analyte",
    "type of test": r"type of test",
    "applicant": r"applicant",
    "proprietary and established names": r"proprietary and established names?",
    "regulation section": r"regulation sections?",
    "classification": r"classification",
    "product code": r"product codes?",
    "panel": r"panel",
    "predicate device name": r"predicate device names?",
    "predicate 510(k) number": r"predicate (?:510\(k\)|k) numbers?",
}
PATTERNS = {attribute: re.compile(pattern, re.IGNORECASE) for attribute, pattern in ATTRIBUTES.items()}


@dataclass(frozen=True)
class Value:
    """What one heading heads. `start`: its first character in the document; `reason`: why it cannot be asked, or None."""

    attribute: str
    value: str
    start: int
    reason: str | None = None


def values(document: str) -> Iterator[Value]:
    """The first heading of each of the twelve attributes that heads anything, in the order of the document."""
    headings = sorted([*HEADING.finditer(document), *NEWER.finditer(document)], key=re.Match.start)
    seen = set()
    for heading, following in zip(headings, [*headings[1:], None]):
        attribute = _attribute(heading["name"])
        if attribute is None or attribute in seen:
            continue
        seen.add(attribute)
        lines = _lines(document, heading, following.start() if following else len(document))
        if lines:
            yield _value(attribute, lines)


def _attribute(name: str) -> str | None:
    plain = re.sub(r"\(s\)", "s", name, flags=re.IGNORECASE)
    return next((attribute for attribute, pattern in PATTERNS.items() if pattern.fullmatch(plain)), None)


def _lines(document: str, heading: re.Match, end: int) -> list[tuple[int, str]]:
    """(first character, text) of the lines that belong to a heading, page marks left out if others remain."""
    found, at = [], heading.start("rest") if heading["rest"] else heading.end()
    for line in document[at:end].splitlines(keepends=True):
        text = line.strip()
        if text:
            found.append((at + line.index(text), text))
        at += len(line)
    return [entry for entry in found if not PAGE_MARK.match(entry[1])] or found[:1]


def _value(attribute: str, lines: list[tuple[int, str]]) -> Value:
    start, text = lines[0]
    if len(lines) > 1:
        return Value(attribute, text, start, "value_over_several_lines")
    return Value(attribute, text, start, "no_value" if NOTHING.match(text) else None)
