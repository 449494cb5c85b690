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


@dataclass(frozen=True)
class Choice:
    """A format and the files it reads; `left_out`: names of files of other kinds that lie among them."""

    format: Format
    files: Files
    left_out: tuple[str, ...] = ()


def choose(task: str, formats: Sequence[Format], name: str, paths: Sequence[str]) -> Choice:
    """The format of this name, or with `auto` the first that fits, and the files it reads.

    Raises `SpecError` for an unknown name, for files in none of the formats or in two of them, `CorpusError` for paths
    without files.
    """
    named = [each for each in formats if each.name == name]
    if name != "auto" and not named:
        raise SpecError(f"task {task!r} has no format {name!r}; choose auto or one of {_listed(formats)}")
    tried = named or formats
    everything = matched(paths, tuple(dict.fromkeys(suffix for each in tried for suffix in each.suffixes)))
    found = next((each for each in tried if _fits(each, everything)), None)
    if found is None:
        raise _none_fits(task, tried, everything)
    files = only(everything, *found.suffixes)
    others = {other: path for other, path in everything.items() if other not in files}
    second = next((each for each in tried if _fits(each, others)), None)
    if second is not None:
        raise SpecError(f"{_some(files)}: in format {found.name!r}, but {_some(others)}: in format {second.name!r}; give "
                        "files of one format at a time, or set `format`")
    return Choice(found, files, tuple(others))


def _none_fits(task: str, tried: Sequence[Format], everything: Files) -> SpecError:
    """Says what each of some files is, if they differ; else what would have fitted."""
    kinds = {name: next((each.name for each in tried if _fits(each, {name: path})), "none") for name, path in
             list(everything.items())[:64]}
    if len(set(kinds.values()) - {"none"}) > 1:
        first = {kind: name for name, kind in reversed(kinds.items())}
        told = ", ".join(f"{name} is {kind}" for kind, name in first.items() if kind != "none")
        return SpecError(f"the files are in different formats: {told}; give files of one format at a time")
    wanted = "; ".join(f"{each.name}: {each.about}" for each in tried)
    return SpecError(f"{_some(everything)}: not in {'any' if len(tried) > 1 else 'that'} format of task {task!r} ({wanted})")


def _fits(form: Format, everything: Files) -> bool:
    files = only(everything, *form.suffixes)
    return bool(files) and form.fits(files)


def _some(files: Files) -> str:
    return ", ".join(list(files)[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _listed(formats: Sequence[Format]) -> str:
    return ", ".join(each.name for each in formats)
