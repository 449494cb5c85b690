"""Natural Questions: what people asked a search engine, answered by a page of Wikipedia.

Columns 512, 1024 and 2048 are documents of that many words and signs (or the published sets of that name); `page` is
the whole page, `all` a published set of another name. Reads simplified and full NQ records, NQ-open with passages, or the published sets.
"""

from tasks.datasets.nq_open import NQ_OPEN
from tasks.datasets.nq_pages import NQ_PAGES, PAGE
from tasks.datasets.passages import COLUMNS
from tasks.datasets.published import StatementRows
from tasks.datasets.task import QuestionTask


class NaturalQuestions(QuestionTask):
    name = "nq"
    formats = (NQ_OPEN, NQ_PAGES)
    published = StatementRows()
    hub = tuple(f"hazyresearch/based_nq_{column}" for column in COLUMNS)
    known_columns = (*COLUMNS, PAGE, "all")
