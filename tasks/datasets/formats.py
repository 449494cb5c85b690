"""What a format is, and how the one that files are in is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage.errors import SpecError
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, matched, only

Entries = Iterator[Record | Unusable]


@dataclass(frozen=True)
class Format:
    """One layout of question-answer data on disk.

    name          as in `QuestionsSpec.format`
    about         the files and fields that it has, for people
    suffixes      of its files, without `.gz`
    fits          a look at the beginning of the files: whether they are in this format
    read          (files, notes) -> records; `notes` counts what is worth saying and rejects nothing
    brings_cloze  its records need no rewriter
    """

    name: str
    about: str
    suffixes: tuple[str, ...]
    fits: Callable[[Files], bool]
    read: Callable[[Files, Counter], Entries]
    brings_cloze: bool = False


def choose(task: str, formats: Sequence[Format], name: str, paths: Sequence[str]) -> tuple[Format, Files]:
    """The format of this name, or with `auto` the first that fits, and the files it reads.

    Raises `SpecError` for an unknown name or files in none of the formats, `CorpusError` for paths without files.
    """
    named = [each for each in formats if each.name == name]
    if name != "auto" and not named:
        raise SpecError(f"task {task!r} has no format {name!r}; choose auto or one of {_listed(formats)}")
    tried = named or formats
    everything = matched(paths, tuple(dict.fromkeys(suffix for each in tried for suffix in each.suffixes)))
    for each in tried:
        files = only(everything, *each.suffixes)
        if files and each.fits(files):
            return each, files
    names = ", ".join(list(everything)[:3]) + (f" and {len(everything) - 3} more" if len(everything) > 3 else "")
    wanted = f"format {name!r} ({named[0].about})" if named else f"any one format of task {task!r}; it reads "
    raise SpecError(f"{names}: not in {wanted}" + ("" if named else "; ".join(
        f"{each.name}: {each.about}" for each in formats)) + ". Give files of one format at a time")


def _listed(formats: Sequence[Format]) -> str:
    return ", ".join(each.name for each in formats)
