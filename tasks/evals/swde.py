"""SWDE: what does this web page give as its title, its publisher, its director?

Reads pages as HTML with their ground truth, in JSON lines or as published, or the published cloze set.
"""

from tasks.datasets import swde
from tasks.datasets.published import AttributeRows
from tasks.datasets.task import QuestionTask


class SWDE(QuestionTask):
    name = "swde"
    formats = (swde.SWDE, swde.ORIGINAL)
    published = AttributeRows()
    hub = ("hazyresearch/based-swde-v2", "hazyresearch/based-swde")
