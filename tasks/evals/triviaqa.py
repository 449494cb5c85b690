"""TriviaQA: quiz questions about documents of Wikipedia and the web. Reads TriviaQA-RC, or the published set (`all`)."""

from tasks.datasets.published import StatementRows
from tasks.datasets.task import QuestionTask
from tasks.datasets.triviaqa import TRIVIAQA


class TriviaQA(QuestionTask):
    name = "triviaqa"
    formats = (TRIVIAQA,)
    published = StatementRows(tags=True)
    hub = ("hazyresearch/based_triviaqa",)
    known_columns = ("wikipedia", "web", "all")
