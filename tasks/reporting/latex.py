"""Tables of a report for LaTeX: booktabs, escaped, with a caption that says conditions and ids.

Needs booktabs and graphicx. A wide table shrinks to the line; a long one goes on in further tables.
"""

from __future__ import annotations

import re
import unicodedata

from tasks.reporting.tables import Table

ROWS = 40               # of one table; a page holds no more
SPECIAL = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
           "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
           "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "−": "$-$", "×": r"$\times$", "±": r"$\pm$",
           "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\rightarrow$", "…": r"\ldots{}", "µ": r"$\mu$", "μ": r"$\mu$",
           "’": "'", "“": "``", "”": "''", "·": r"$\cdot$", "²": r"$^2$", "³": r"$^3$", "°": r"$^\circ$", "½": r"$\frac{1}{2}$"}
PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,margin=2cm]{geometry}
\usepackage{textcomp,booktabs,graphicx}
"""


def escape(text: str) -> str:
    """Text as LaTeX sets it. Characters that pdflatex has no glyph for become their nearest plain ones, else `?`."""
    return "".join(SPECIAL.get(letter) or _plain(letter) for letter in text)


def _plain(letter: str) -> str:
    if unicodedata.category(letter) == "Cc":         # new lines too: two of them would end a paragraph
        return " "
    if ord(letter) < 0x180:                          # Latin, which T1 has
        return letter
    return unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"


def prose(text: str) -> str:
    """Like `escape`, of a sentence with `names` in backticks."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(rf"\texttt{{{escape(part)}}}" if number % 2 else escape(part) for number, part in enumerate(parts))


def table(found: Table, conditions: str, identifiers: dict[str, str]) -> str:
    """One file: as many tables as it needs. conditions: a sentence for the caption; identifiers: role -> artifact id, all
    of them in comments at the head."""
    head = [f"% {role}: {identifier}".replace("\n", " ") for role, identifier in identifiers.items()]
    parts = [found.rows[start:start + ROWS] for start in range(0, len(found.rows), ROWS)] or [[]]
    return "\n".join([*head, *(_part(found, rows, conditions, number, len(parts)) for number, rows in enumerate(parts, 1))]) + "\n"


def _part(found: Table, rows: list[list[str]], conditions: str, number: int, of: int) -> str:
    label = "tab:" + re.sub(r"[^A-Za-z0-9]+", "-", found.name) + (f"-{number}" if number > 1 else "")
    title = escape(found.title) + (f", part {number} of {of}" if of > 1 else "")
    caption = " ".join(part for part in (f"{title}.", prose(found.note) if number == 1 else "", prose(conditions)) if part)
    columns = "".join("l" if _words([row[place] for row in rows]) else "r" for place in range(len(found.columns)))
    lines = [_line(found.columns), *map(_line, rows)]
    return "\n".join([
        r"\begin{table}[htbp]", r"\centering", rf"\caption[{{{title}}}]{{{caption}}}", rf"\label{{{label}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%", rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        lines[0] + r" \\", r"\midrule", *(line + r" \\" for line in lines[1:]), r"\bottomrule", r"\end{tabular}}",
        r"\end{table}"])


def _line(cells: list[str]) -> str:
    """A row; one that begins with [ or * would belong to the \\\\ before it."""
    text = " & ".join(map(escape, cells))
    return "{}" + text if text.startswith(("[", "*")) else text


def _words(cells: list[str]) -> bool:
    """Whether a column holds words, which stand on the left."""
    return any(cell and not re.match(r"[-+−–]?\d|–$", cell) for cell in cells)


def document(title: str, about: str, files: list[str]) -> str:
    """A document that sets all tables, one after the other; files: their names without .tex."""
    inputs = "\n".join(rf"\input{{{name}}}" + "\n" + r"\clearpage" for name in files)
    return (PREAMBLE + rf"\title{{{escape(title)}}}" + "\n" + r"\date{}" + "\n" + r"\begin{document}" + "\n" + r"\maketitle"
            + f"\n{prose(about)}\n" + r"\listoftables" + "\n" + r"\clearpage" + f"\n{inputs}\n" + r"\end{document}" + "\n")
