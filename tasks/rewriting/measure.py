"""How good the rule-based rewriter is on files at hand: `python -m tasks.rewriting.measure PATH...`

Each path is read in whichever original format it is in, and one line of a table says: records, the share that passes
every validation (the tokens of GPT-2 included), the share that fell back to asking about the question, and what was
rejected by reason. `--draw N` writes N clozes of each path instead, drawn with a fixed seed, for people to judge.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from storage.errors import CorpusError, RereadError, SpecError
from tasks.datasets.records import Record, Unusable
from tasks.rewriting.rules import rewritten
from tasks.rewriting.validation import tokens_agree, why_not
from tasks.specs import QuestionsSpec

TASKS = ("squad", "nq", "triviaqa", "drop")
DOCUMENT_END = "end of the document\n\n"       # stands for what a prompt has before its cloze
SEED = 0


@dataclass
class Quality:
    """Counts of one file. `rejected`: by reason, what the reader could not use included."""

    records: int = 0
    passed: int = 0
    fallback: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Records that pass every validation, of all records with a question that was asked to be rewritten."""
        return self.passed / max(self.records, 1)

    def line(self, name: str) -> str:
        why = ", ".join(f"{reason} {count}" for reason, count in self.rejected.most_common())
        return (f"{name:34} {self.records:8} {100 * self.share:8.1f} "
                f"{100 * self.fallback / max(self.records, 1):9.1f}  {why}")


def measured(records: Iterable[Record | Unusable], tokenizer) -> Quality:
    """The rewriter's quality on these records; an `Unusable` of the reader is counted as rejected, not as a record."""
    quality = Quality()
    for record in records:
        if isinstance(record, Unusable):
            quality.rejected[f"reader: {record.reason}"] += 1
            continue
        quality.records += 1
        form, cloze = rewritten(record)
        quality.fallback += form == "fallback"
        reason = cloze.reason if isinstance(cloze, Unusable) else why_not(cloze, record) or _tokens(tokenizer, cloze, record)
        if reason:
            quality.rejected[reason] += 1
        else:
            quality.passed += 1
    return quality


def _tokens(tokenizer, cloze: str, record: Record) -> str | None:
    agree = all(tokens_agree(tokenizer, DOCUMENT_END + cloze, answer) for answer in record.answers)
    return None if agree else "tokens_change_at_answer"


def read(path: str) -> list[Record | Unusable]:
    """All records of a path, in the first task's format that it is in. Raises `SpecError` where it is in none."""
    from tasks import questions
    from tasks.evals.base import get_task

    problems = []
    for name in TASKS:
        try:
            return list(questions.read(get_task(name), QuestionsSpec(task=name, paths=(path,))))
        except (CorpusError, SpecError) as error:
            problems.append(str(error))
    raise SpecError(f"{path}: in no format of {', '.join(TASKS)}; " + problems[0])


def drawn(path: str, count: int) -> list[str]:
    """`count` lines question -> cloze [answer], drawn from all records of the path; the same every time."""
    records = [record for record in read(path) if isinstance(record, Record)]
    chosen = random.Random(SEED).sample(records, min(count, len(records)))
    lines = []
    for record in chosen:
        form, cloze = rewritten(record)
        text = cloze if isinstance(cloze, str) else f"({cloze.reason})"
        lines.append(f"{' '.join(record.question.split())} -> {text} [{record.answers[0]}]" +
                     (" (fallback)" if form == "fallback" else ""))
    return lines


def main(arguments: Sequence[str]) -> int:
    """The command line; 2 for a mistake in it."""
    from tasks.tokenizers import load_tokenizer

    draw = 0
    if arguments[:1] == ["--draw"] and len(arguments) > 2 and arguments[1].isdigit():
        draw, arguments = int(arguments[1]), arguments[2:]
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m tasks.rewriting.measure [--draw N] PATH...\n")
        return 2
    try:
        if draw:
            sys.stdout.writelines(f"{line}\n" for path in arguments for line in drawn(path, draw))
            return 0
        sys.stdout.write(f"{'file':34} {'records':>8} {'pass %':>8} {'fallback %':>9}  rejected\n")
        for path in arguments:
            sys.stdout.write(measured(read(path), load_tokenizer("gpt2")).line(path.rsplit("/", 1)[-1]) + "\n")
    except RereadError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
