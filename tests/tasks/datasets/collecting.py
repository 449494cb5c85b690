"""Reading one format in a test: records, what was unusable, notes; and what must hold of every record."""

import gzip
import json
from collections import Counter
from pathlib import Path

from tasks.datasets.formats import choose
from tasks.datasets.records import Record, Unusable
from tasks.evals.base import get_task


class Collected:
    """Records and rejects of a source; every record is checked on the way."""

    def __init__(self, task: str, *paths: Path, form: str = "auto") -> None:
        choice = choose(task, get_task(task).readable, form, [str(path) for path in paths])
        self.format, self.notes = choice.format.name, Counter()
        self.records: list[Record] = []
        self.unusable: list[Unusable] = []
        for entry in choice.format.read(choice.files, self.notes):
            (self.records if isinstance(entry, Record) else self.unusable).append(entry)
        for record in self.records:
            assert record.where and record.document and record.question and record.answers
            assert record.span is None or record.document[slice(*record.span)] == record.answers[0]
            assert (record.cloze is not None) == choice.format.brings_cloze

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(each.reason for each in self.unusable))

    def __getitem__(self, identifier: str) -> Record:
        [found] = [record for record in self.records if record.id == identifier]
        return found


def put(path: Path, content) -> Path:
    """Write text, JSON, or a list of lines that are each JSON or raw text; `.gz` by the name."""
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in content)
    elif not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
