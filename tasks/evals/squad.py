"""SQuAD: questions about a paragraph of Wikipedia, answered by a span of it. Reads v1 and v2, or the published set."""

from tasks.datasets.published import SquadRows
from tasks.datasets.squad import SQUAD
from tasks.datasets.task import QuestionTask


class Squad(QuestionTask):
    name = "squad"
    formats = (SQUAD,)
    published = SquadRows()
    hub = ("hazyresearch/based-squad",)
