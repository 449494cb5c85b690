"""What a language model is told: instructions by version, and the request that a record becomes.

An instruction never changes under its version: to say it differently is a new version beside the old one. It stands in
the first user turn, not in a system turn, since some chat templates refuse those.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from storage.errors import SpecError
from storage.identity import canonical
from tasks.datasets.records import Record
from tasks.specs import RewriterSpec


@dataclass(frozen=True)
class Instruction:
    """What to do, and worked examples: (question, answer, statement)."""

    text: str
    examples: tuple[tuple[str, str, str], ...]


INSTRUCTIONS = {
    "v1": Instruction(
        "You are given a question and its answer. Write both as one statement whose last words are the answer.\n"
        "- Keep every name, number and date that the question mentions.\n"
        "- The answer stands at the very end, letter for letter as given, and nowhere else.\n"
        "- Nothing follows it: no full stop, no quotation mark, no explanation.\n"
        "- Write a single line with the statement and nothing besides it.",
        (("Which river flows past the town of Aldmoor?", "the Wenning",
          "The river that flows past the town of Aldmoor is the Wenning"),
         ("How many keepers lived in the lighthouse on Skerra after the fire of 1921?", "three",
          "After the fire of 1921, the number of keepers who lived in the lighthouse on Skerra was three")),
    ),
}


@dataclass(frozen=True)
class Ask:
    """One request: the key its reply is kept under, the record that wants it, and the body that is sent."""

    key: str
    where: str
    body: dict[str, Any]


def check(spec: RewriterSpec) -> None:
    """Raises SpecError for an instruction there is not, or no model."""
    if spec.prompt not in INSTRUCTIONS:
        raise SpecError(f"rewriter.prompt: there is no instruction {spec.prompt!r}; there is "
                        f"{', '.join(INSTRUCTIONS)}")
    if not spec.model.strip():
        raise SpecError("rewriter.model: empty; name the model as the server at rewriter.url calls it")


def ask_for(spec: RewriterSpec, record: Record) -> Ask:
    """The request of a record with an answer. Equal requests to equal models have one key, whichever server answers."""
    body = {"model": spec.model, "messages": messages(spec.prompt, record), "temperature": spec.temperature,
            "max_tokens": spec.maximum_tokens}
    key = hashlib.sha256(canonical({"prompt": spec.prompt, "request": body}).encode()).hexdigest()
    return Ask(key, record.id, body)


def messages(version: str, record: Record) -> list[dict[str, str]]:
    """Turns in the OpenAI form: instruction and examples first, the record's question and first answer last."""
    instruction = INSTRUCTIONS[version]
    turns = []
    for question, answer, statement in instruction.examples:
        turns += [_user(question, answer), {"role": "assistant", "content": statement}]
    turns.append(_user(record.question, record.answers[0]))
    turns[0] = {"role": "user", "content": f"{instruction.text}\n\n{turns[0]['content']}"}
    return turns


def one_line(text: str) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(text.split())


def _user(question: str, answer: str) -> dict[str, str]:
    return {"role": "user", "content": f"Question: {one_line(question)}\nAnswer: {one_line(answer)}"}
