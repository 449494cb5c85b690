"""What each task's released prompts are made of: a recipe per task, whitespace and all (jrt.md 4.2).

`strip` and its order are the released ones; where two tasks, or two orders of one task, differ, the released code does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TAGS = ("[PAR]", "[DOC]", "[TLE]")
SUMMARY = "Summary of information above..."      # a SWDE document ends before it
QUESTION = "Question:"                           # a SQuAD context ends before it
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One task's prompts.

    document  the field that the released code truncates
    needs     the other fields
    searched  fields whose first occurrence is kept by its truncation; none: the head is kept (jrt.md 4.3)
    asked     fields -> what `twice` begins with
    cloze     fields -> what a prompt ends in
    default, twice  fields -> the document as it stands in that order; in `twice` (first copy, second copy)
    """

    document: str
    needs: tuple[str, ...]
    searched: tuple[str, ...]
    asked: Callable[[Fields], str]
    cloze: Callable[[Fields], str]
    default: Callable[[Fields], str]
    twice: Callable[[Fields], tuple[str, str]]


def _key(fields: Fields) -> str:
    """The key with its first letter in upper case, as FDA and SWDE ask for it."""
    return f"{fields['key'][:1].upper()}{fields['key'][1:]}"


def _key_asked(fields: Fields) -> str:
    return f"Information about {_key(fields)}."


def _key_cloze(fields: Fields) -> str:
    return f"{_key(fields)}:"


def _without(text: str, ending: str) -> str:
    """The text without this ending, however often it stands there, letter case apart."""
    while ending and text.lower().endswith(ending.lower()):
        text = text[: -len(ending)]
    return text


def _stopped(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _fda(fields: Fields) -> str:
    text = _without(fields["text"], f"{fields['key']}:").strip("\n").strip(".")
    return f"{_stopped(text)} {_key_cloze(fields)}"


def _fda_twice(fields: Fields) -> tuple[str, str]:
    second = _fda(fields)
    return second.removesuffix(f" {_key_cloze(fields)}"), second


def _swde(fields: Fields) -> str:
    return _without(fields["text"].split(SUMMARY)[0], f"{fields['key']}:")


def _swde_default(fields: Fields) -> str:
    text = _swde(fields).strip("\n").strip().strip("\n").strip().strip(".")
    return f"{text}. {_key_cloze(fields)}"


def _swde_twice(fields: Fields) -> tuple[str, str]:
    text = _stopped(_swde(fields).strip("\n").strip(".").strip().strip("\n").strip())
    return text, f"{text} {_key_cloze(fields)}"


def _cloze(fields: Fields) -> str:
    return fields["question"].strip()


def _nq(fields: Fields) -> str:
    context, cloze = fields["context"].strip(), _cloze(fields)
    return f"{context.removesuffix(cloze).strip().strip('.')}. {cloze}"


def _passage(fields: Fields) -> str:
    return f"{_without(fields['context'].strip(), _cloze(fields)).strip().strip('.')}. {_cloze(fields)}"


def _passage_twice(fields: Fields) -> tuple[str, str]:
    text = _without(fields["context"].strip(), _cloze(fields)).strip().strip(".").strip() + "."
    return text, f"{text} {_cloze(fields)}"


def _untagged(fields: Fields) -> Fields:
    """TriviaQA's context without its tags; the blanks around them stay."""
    context = fields["context"].strip()
    for tag in TAGS:
        context = context.replace(tag, "")
    return {**fields, "context": context}


def split_squad(fields: Fields) -> tuple[str, str, str]:
    """(document, white space after it, cloze) of SQuAD's `text`. The cloze is what follows the context."""
    text = fields["text"].strip()
    cloze = fields.get("cloze")
    if cloze is None:
        context = fields["context"].split(QUESTION)[0].strip()
        cloze = (text[len(context):] if context and text.startswith(context) else text.rpartition("\n")[2]).strip()
    if not cloze or not text.endswith(cloze):
        return text, "", cloze
    document = text[: len(text) - len(cloze)]
    return document.rstrip(), document[len(document.rstrip()):], cloze


def _squad_twice(fields: Fields) -> tuple[str, str]:
    return fields["context"].split(QUESTION)[0], fields["text"].strip()


_ASKED = dict(asked=lambda fields: fields["orig_question"].strip(":"), cloze=_cloze, twice=_passage_twice)
_KEYED = dict(document="text", needs=("key", "value"), searched=("key", "value"), asked=_key_asked, cloze=_key_cloze)
_OPEN = ("question", "orig_question", "answers")
RECIPES = {
    "fda": Recipe(**_KEYED, default=_fda, twice=_fda_twice),
    "swde": Recipe(**_KEYED, default=_swde_default, twice=_swde_twice),
    "nq": Recipe("context", _OPEN, ("answers",), **_ASKED, default=_nq),
    "squad": Recipe("text", ("context", "question", "value"), ("value",), asked=lambda fields: fields["question"],
                    cloze=lambda fields: split_squad(fields)[2], default=lambda fields: fields["text"].strip(),
                    twice=_squad_twice),
    "triviaqa": Recipe("context", _OPEN, (), asked=lambda fields: fields["orig_question"], cloze=_cloze,
                       default=lambda fields: _passage(_untagged(fields)),
                       twice=lambda fields: _passage_twice(_untagged(fields))),
    "drop": Recipe("context", _OPEN, (), **_ASKED, default=_passage),
}
