"""What an eval task is, and how the files of this folder are found.

A task names documents, questions and answers. It knows neither orders nor budgets: the cloze stage cuts, composes,
checks and counts, so whatever has a document and a question can be asked in every order. One file is one task: the
file's name is the task's name, it holds one `EvalTask` subclass, and nothing else has to be edited.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import pkgutil
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import ValidationError

import tasks.evals
from storage.errors import ConfigError, SpecError
from tasks import prompts
from tasks.evals.pool import AttributePool
from tasks.scoring import contains
from tasks.specs import ORDERS, Spec
from tasks.templates import RELEASED


@dataclass(frozen=True)
class Document:
    """One document of a corpus split."""

    id: str
    text: str


@dataclass(frozen=True)
class Item:
    """One question about one document. `keep`: the characters of the document that no cut may remove."""

    id: str
    document_id: str
    document: str
    question: str
    cloze: str
    answers: tuple[str, ...]
    column: str
    keep: tuple[int, int] | None = None
    uncommon: bool = False
    title: str = ""
    released: Mapping[str, Any] | None = None     # fields of the published set, for released templates


@dataclass(frozen=True)
class QuestionRow:
    """One row of the `questions.arrow` of a questions artifact.

    answers             acceptable ones, the first is the one that the cloze ends in
    keep_start, keep_end  characters of the answer in the document; -1 where it is not there
    released            JSON of the published fields; "" where the data come from elsewhere
    """

    id: str
    document_id: str
    title: str
    document: str
    question: str
    cloze: str
    answers: tuple[str, ...]
    column: str
    keep_start: int = -1
    keep_end: int = -1
    released: str = ""

    @property
    def keep(self) -> tuple[int, int] | None:
        """The answer's characters in the document, None where it is not there."""
        return None if self.keep_start < 0 else (self.keep_start, self.keep_end)

    @property
    def fields(self) -> dict[str, Any] | None:
        """The published fields, None where there are none."""
        return json.loads(self.released) if self.released else None


@dataclass(frozen=True)
class Rejection:
    """A document that gives no item. It is counted under `reason`."""

    document_id: str
    reason: str


@dataclass(eq=False)
class Material:
    """What a task may draw from.

    documents  split name -> its documents; an unknown split has none
    view       texts -> as much of each as a prompt can show, cut at a full line
    split      where questions are asked: validation or test
    seed       of every draw
    questions  the rows of the questions artifact, in its order; none for tasks that make their own
    """

    documents: Callable[[str], Iterable[Document]]
    view: Callable[[Sequence[str]], list[str]]
    split: str = "test"
    seed: int = 0
    questions: Callable[[], Iterable[QuestionRow]] = tuple

    @cached_property
    def pool(self) -> AttributePool:
        """Names and values of the training split: all that a model could have learned by heart."""
        return AttributePool.of(document.text for document in self.documents("train"))

    def draw(self, *about: Any) -> random.Random:
        """A generator that depends on the seed and on what it is for, and on nothing drawn before."""
        return random.Random("/".join(map(str, (self.seed, *about))))

    def shuffled(self, split: str) -> list[Document]:
        """The documents of a split in an order that depends on the seed and each document's id alone."""
        return sorted(self.documents(split), key=lambda document: self.draw("order", document.id).random())


class EvalTask:
    """Base of the tasks. Class attributes say what the cloze stage must know; `items` does the work."""

    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec
    orders: ClassVar[tuple[str, ...]] = ORDERS             # orders in which the task can be asked
    default_orders: ClassVar[tuple[str, ...] | None] = None  # None: those of the spec
    templates: ClassVar[tuple[str, ...]] = ("clean",)
    needs_corpus: ClassVar[bool] = True
    needs_questions: ClassVar[bool] = False                # whether it asks the rows of a questions artifact
    cuttable: ClassVar[bool] = True                        # whether a document may be shortened
    end_of_text_first: ClassVar[bool] = True               # the model reads the end-of-text token before the prompt
    generation_tokens: ClassVar[int | None] = None         # None: as many as the spec allows
    metric: ClassVar[str | None] = None                    # None: the metric of the evaluation

    def options(self, given: Mapping[str, Any]) -> Spec:
        """Validated options. Raises `SpecError` with the field, what is wrong and the fields there are."""
        try:
            return self.Options(**given)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
            raise SpecError(f"task {self.name!r}: {problems}. Options: "
                            f"{', '.join(self.Options.model_fields) or 'none'}") from error

    def columns(self, options: Spec) -> tuple[str, ...]:
        """Names of the groups that are scored apart."""
        raise NotImplementedError

    def items(self, material: Material, options: Spec, column: str) -> Iterator[Item | Rejection]:
        """Items of one column, the questions of one document in a row; the caller stops when it has enough."""
        raise NotImplementedError

    def compose(self, order: str, document: str | None, item: Item, filler: str | None = None,
                template: str = "clean") -> prompts.Prompt:
        """The item's prompt over this document; None asks the question without any.

        `clean` is the same for every task. A released template writes the item's published fields and knows the tasks
        that it was released for, which name it in `templates`.
        """
        if template in RELEASED:
            return RELEASED[template].prompt(self.name, order, item.released or {}, document)
        if document is None:
            asked_before = item.question + prompts.BLANK_LINE if "Q" in prompts.PARTS[order] else ""
            return prompts.Prompt(asked_before + item.cloze, item.cloze)
        return prompts.compose(order, document, item.question, item.cloze, filler)

    def mentions(self, document: str, item: Item) -> bool:
        """Whether this document gives the answer away; such a document is no control."""
        return contains(document, item.answers)

    def vocabulary_tokenizer(self, options: Spec) -> str | None:
        """Name of the tokenizer of a task that brings its own ids; None: the corpus's tokenizer."""
        return None


def task_names() -> list[str]:
    """Names of all tasks, whether or not their files import."""
    return sorted(found.name for found in pkgutil.iter_modules(tasks.evals.__path__)
                  if found.name not in ("base", "pool"))


def get_task(name: str) -> EvalTask:
    """The task of this name. Raises `SpecError` for an unknown name, `ConfigError` for a file that is no task."""
    if name not in task_names():
        close = difflib.get_close_matches(name, task_names(), n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise SpecError(f"there is no eval task {name!r}{meant}; choose one of {', '.join(task_names())}, "
                        "or add a file under tasks/evals")
    try:
        module = importlib.import_module(f"tasks.evals.{name}")
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"eval task {name!r} cannot be imported: {error}") from error
    found = [each for _, each in inspect.getmembers(module, inspect.isclass)
             if issubclass(each, EvalTask) and each.__module__ == module.__name__]
    if len(found) != 1 or getattr(found[0], "name", None) != name:
        raise ConfigError(f"{module.__file__} must hold exactly one EvalTask with name = {name!r}; "
                          f"it holds {[each.__name__ for each in found]}")
    return found[0]()
