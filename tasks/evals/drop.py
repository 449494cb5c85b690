"""DROP: questions about a passage whose answer, a number, a date or a name, is said there.

Reads the official JSON, JSON lines of passages, or the published set. One digit is an answer here, as in the released
rules.
"""

from pydantic import Field

from tasks.datasets import drop
from tasks.datasets.published import StatementRows
from tasks.datasets.task import QuestionOptions, QuestionTask


class Options(QuestionOptions):
    """Options of `drop`."""

    minimum_answer_characters: int = Field(1, ge=1, description="Shorter answers are not asked")


class Drop(QuestionTask):
    name = "drop"
    Options = Options
    formats = (drop.OFFICIAL, drop.LINES)
    published = StatementRows()
    hub = ("hazyresearch/based_drop",)
