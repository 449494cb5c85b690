"""LaTeX tables: escaped, in parts where long, and a document that a LaTeX sets where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tasks.reporting import latex
from tasks.reporting.tables import Table

AWKWARD = r"50 % of a_b & c#d {e} ~f^g \h $i <j> |k| – − × ≤ “l” é ☃ 語"


def many(rows: int) -> Table:
    return Table("recall-a_b", "Recall: a_b & more", ["architecture", "value 95 %", "n"],
                 [[f"jrt_{i}", f"0.{i:03} [0.1, 0.2]", f"{i:,}"] for i in range(rows)], "Only what lies `above_both` counts.")


def test_nothing_special_is_left():
    text = latex.escape(AWKWARD)
    bare = re.sub(r"\\[a-zA-Z]+(\{\})?|\\[&%$#_{}]|\$[^$]*\$", "", text)
    assert not set(bare) & set("&%$#_{}~^\\<>|–−×≤“”☃語"), bare
    assert r"50 \% of a\_b \& c\#d \{e\}" in text and "é" in text and text.endswith("? ?")


def test_a_table_says_its_conditions_and_ids():
    text = latex.table(many(2), "Study `toy`, report `report-0123`.", {"report": "report-0123", "x/rows": "rows-4567"})
    assert text.startswith("% report: report-0123\n% x/rows: rows-4567\n")
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption"))
    assert r"\texttt{report-0123}" in caption and r"\texttt{above\_both}" in caption and r"Recall: a\_b \& more." in caption
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:recall-a-b}")] == [1] * 4
    assert r"\begin{tabular}{lrr}" in text and r"jrt\_1 & 0.001 [0.1, 0.2] & 1 \\" in text


def test_cells_break_no_line_and_no_row():
    """After \\\\ LaTeX reads [ as a length and * as a command of its own, also on the next line."""
    found = Table("t", "T", ["a", "b"], [["x", "1"], ["[y]", "2"], ["* z", "3"], ["one\n\ntwo\x1b\x00", "4"]])
    lines = latex.table(found, "C.", {}).splitlines()
    assert r"{}[y] & 2 \\" in lines and r"{}* z & 3 \\" in lines and r"one  two   & 4 \\" in lines


def test_a_long_table_goes_on_in_parts_and_loses_no_row():
    text = latex.table(many(90), "C.", {})
    assert text.count(r"\begin{table}") == 3 == text.count(r"\end{table}") and text.count(r"jrt\_") == 90
    assert "part 3 of 3" in text and len(set(re.findall(r"\\label\{(.*?)\}", text))) == 3


@pytest.mark.skipif(not (shutil.which("pdflatex") or shutil.which("tectonic")), reason="no pdflatex and no tectonic here")
def test_a_latex_sets_it(tmp_path):
    table = many(45)
    table.rows.append([AWKWARD, AWKWARD, AWKWARD])
    (tmp_path / "one.tex").write_text(latex.table(table, f"Study `{AWKWARD}`.", {"report": AWKWARD}), encoding="utf-8")
    (tmp_path / "all.tex").write_text(latex.document(AWKWARD, AWKWARD, ["one"]), encoding="utf-8")
    program = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"] if shutil.which("pdflatex") else ["tectonic"]
    done = subprocess.run([*program, "all.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=300, errors="replace")
    assert done.returncode == 0 and (tmp_path / "all.pdf").stat().st_size > 1000, done.stdout[-2000:]
