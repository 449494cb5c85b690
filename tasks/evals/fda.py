"""FDA 510(k) decision summaries: what does this document give as its classification, its product code, its applicant?

Reads documents with attribute items, documents alone (twelve attributes off their headings), or the published set.
"""

from tasks.datasets import fda
from tasks.datasets.published import AttributeRows
from tasks.datasets.task import QuestionTask


class FDA(QuestionTask):
    name = "fda"
    formats = (fda.ITEMS, fda.DOCUMENTS)
    published = AttributeRows()
    hub = ("hazyresearch/based-fda",)
