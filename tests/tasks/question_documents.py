"""Synthetic rows of questions.arrow: short reports with facts that can be asked, no answer in two of them."""

import random

from tasks import cloze
from tasks.evals.base import QuestionRow, get_task
from tasks.specs import ClozeSpec
from tasks.tokenizers import load_tokenizer

DOCUMENTS = 44
KEYED = ("fda", "swde")                  # tasks that ask `Attribute:` instead of a sentence
FACTS = [                                # sentence with the answer last, what is asked, how an attribute is called
    ("The bridge of {place} was opened in", "When was the bridge of {place} opened?", "Year of opening"),
    ("The mayor who built it in {place} was", "Who was the mayor who built it in {place}?", "Mayor"),
    ("The stone for {place} came from the quarry of", "From which quarry did the stone for {place} come?", "Quarry"),
]


def question_rows(task: str, documents: int = DOCUMENTS, long: bool = False) -> list[QuestionRow]:
    """Rows of every column of the task, a few questions a document. long: each document is one line of 300 sentences."""
    found = []
    for column in get_task(task).columns(get_task(task).options({})):
        for number in range(documents):
            found += _document(task, column, number, long)
    return found


def _document(task: str, column: str, number: int, long: bool) -> list[QuestionRow]:
    draw = random.Random(f"{task}/{column}/{number}")
    place, name = f"Tolm {number:02d}", f"{column}-{number:02d}"
    answers = [f"{1000 + 17 * number}", f"Ida Kr{'aeiou'[number % 5]}ll{number:02d}", f"Vey{number:02d}stone"]
    facts = [(f"{statement.format(place=place)} {answer}.", statement, asked, key, answer)
             for (statement, asked, key), answer in zip(FACTS, answers)]
    sentences = [fact[0] for fact in facts]
    fill = [f"Report {k} says nothing of interest about the river." for k in range(300 if long else draw.randint(1, 3))]
    lines = sentences + fill
    draw.shuffle(lines)
    document = " ".join(lines) if long else f"Report on {place}\n" + "\n".join(lines)
    rows = []
    for k, (sentence, statement, asked, key, answer) in enumerate(facts):
        start = document.index(sentence) + len(sentence) - 1 - len(answer)
        question, statement = ((f"{key}?", f"{key}:") if task in KEYED else
                               (asked.format(place=place), statement.format(place=place)))
        rows.append(QuestionRow(f"{name}/{k}", name, f"Report on {place}", document, question, statement, (answer,), column,
                                start, start + len(answer)))
    return rows


def prompts_of(task: str, **settings):
    """All rows of prompts.arrow over these questions, without artifacts."""
    return list(stream_of(task, **settings))


def stream_of(task: str, rows=None, held=None, counts=None, **settings):
    """`prompts_of`, as they are taken."""
    spec = ClozeSpec(**{"task": task, "document_tokens": 400, "total_tokens": 8192, "limit": 6, **settings})
    found, options, resolved = cloze.resolve(spec)
    return cloze.write(resolved, found, options, lambda split: (), held or load_tokenizer("bytes"),
                       cloze.Written() if counts is None else counts,
                       questions=question_rows(task) if rows is None else rows)


def by_item(found):
    """item -> (order, control) -> row"""
    grouped = {}
    for row in found:
        grouped.setdefault(row.id, {})[row.order, row.control] = row
    return grouped
