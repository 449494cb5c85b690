"""The published figures: one `Claim` a printed number, found by its id or by system, task and metric.

data/*.csv hold what two papers (JRT, arXiv 2407.05483v1; LAVO, arXiv 2312.11135v1) print, as two study notes report
it, and for comparison facts of the released JRT code and results of the CAB benchmark. Nothing there was measured
here. A printed number stands for plus or minus half a unit of its last digit, unless it is a setting or a count.
"""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path

from storage.errors import ArtifactError, SpecError

DATA = Path(__file__).with_name("data")
COLUMNS = ("paper", "source", "claim_id", "system", "variant", "task", "metric", "unit", "higher_is_better", "condition",
           "value", "note")
# units whose values are measurements, printed rounded; every other unit is a setting or a count, which is exact
ROUNDED = ("percent", "ppl", "ms", "x", "MB", "M", "B", "rouge", "cd", "f_score", "error", "distortion", "mean_tokens")


@dataclass(frozen=True)
class Claim:
    """One printed number. higher_is_better is None for settings and counts; file: the CSV that holds it."""

    paper: str
    source: str
    claim_id: str
    system: str
    variant: str
    task: str
    metric: str
    unit: str
    higher_is_better: bool | None
    condition: str
    value: float
    printed: str
    note: str
    file: str

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit; 0 for a setting or a count."""
        return half_unit(self.printed) if self.unit in ROUNDED else 0.0

    @property
    def where(self) -> str:
        """`JRT Table 2, p. 9`."""
        return f"{self.paper} {self.source}"


class Registry:
    """All claims of a folder, in the order of its files."""

    def __init__(self, claims: list[Claim]) -> None:
        self.claims = tuple(claims)
        self._by_id = {claim.claim_id: claim for claim in claims}

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._by_id

    def get(self, claim_id: str) -> Claim:
        """The claim of that id.

        :raises SpecError: there is none; names the closest
        """
        if claim_id not in self._by_id:
            close = difflib.get_close_matches(claim_id, self._by_id, n=3, cutoff=0.6)
            raise SpecError(f"there is no claim {claim_id!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
                            + " `reread claims list` shows those there are")
        return self._by_id[claim_id]

    def find(self, system: str | None = None, task: str | None = None, metric: str | None = None,
             paper: str | None = None) -> list[Claim]:
        """Claims whose fields equal what is given, letter case aside."""
        wanted = {name: value.lower() for name, value in
                  (("system", system), ("task", task), ("metric", metric), ("paper", paper)) if value is not None}
        return [claim for claim in self.claims
                if all(getattr(claim, name).lower() == value for name, value in wanted.items())]

    def matching(self, pattern: str) -> list[Claim]:
        """Claims that hold every word of `pattern` in any of their fields, letter case aside."""
        words = pattern.lower().split()
        return [claim for claim in self.claims
                if all(word in " ".join((claim.claim_id, claim.where, claim.system, claim.variant, claim.task,
                                         claim.metric, claim.condition, claim.note)).lower() for word in words)]


@lru_cache
def load(folder: Path = DATA) -> Registry:
    """Every claim file of a folder.

    :raises ArtifactError: a file lacks a column, a value is no number, or an id stands twice; names file and line
    """
    claims: list[Claim] = []
    seen: dict[str, str] = {}
    for path in claim_files(folder):
        for number, row in enumerate(rows(path, COLUMNS), 2):
            place = f"{path.name}, line {number}"
            if row["claim_id"] in seen:
                raise ArtifactError(f"{place}: claim_id {row['claim_id']!r} stands in {seen[row['claim_id']]} already")
            seen[row["claim_id"]] = place
            claims.append(_claim(row, path.name, place))
    return Registry(claims)


def claim_files(folder: Path = DATA) -> list[Path]:
    """The CSV files that hold claims: of the two papers and of what they are compared with."""
    return [path for prefix in ("jrt_", "lavo_", "ref_") for path in sorted(folder.glob(f"{prefix}*.csv"))]


def rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV file.

    :raises ArtifactError: it cannot be read or its columns are not these
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            found = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"{path.name} cannot be read: {error}; install the package again") from error
    if tuple(reader.fieldnames or ()) != columns:
        raise ArtifactError(f"{path.name}: columns {list(reader.fieldnames or ())}, expected {list(columns)}")
    broken = next((number for number, row in enumerate(found, 2) if None in row or None in row.values()), None)
    if broken:
        raise ArtifactError(f"{path.name}, line {broken}: expected {len(columns)} cells")
    return found


def half_unit(printed: str) -> float:
    """Half a unit of the last digit of a number as printed: 0.05 for 42.9, 0.5 for 99."""
    return float(Decimal(5).scaleb(Decimal(printed).as_tuple().exponent - 1))


def _claim(row: dict[str, str], file: str, place: str) -> Claim:
    try:
        value = float(Decimal(row["value"]))
    except InvalidOperation as error:
        raise ArtifactError(f"{place}: value {row['value']!r} is no number") from error
    if row["higher_is_better"] not in ("true", "false", ""):
        raise ArtifactError(f"{place}: higher_is_better {row['higher_is_better']!r}, expected true, false or nothing")
    better = {"true": True, "false": False, "": None}[row["higher_is_better"]]
    return Claim(**{**row, "higher_is_better": better, "value": value, "printed": row["value"], "file": file})
