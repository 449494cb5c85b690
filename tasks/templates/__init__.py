"""Template versions: how document, question and cloze become one text.

`clean` is the same for every task and lives in tasks/prompts.py. A released version differs by task, byte for byte as
it was published, so it has a file of its own here and knows its tasks and orders.
"""

from __future__ import annotations

from storage.errors import SpecError
from tasks.templates import jrt_2407

CLEAN = "clean"
RELEASED = {jrt_2407.NAME: jrt_2407}


def check(template: str, task: str, orders: tuple[str, ...], budget: str) -> None:
    """Raise SpecError where the template has not these orders, or the budget needs another template."""
    if template in RELEASED:
        wrong = [order for order in orders if order not in RELEASED[template].ORDERS]
        if wrong:
            raise SpecError(f"template {template!r} is the released one and was written for the orders "
                            f"{' and '.join(RELEASED[template].ORDERS)} alone; leave out {', '.join(wrong)}, or use "
                            f"template {CLEAN!r}, which has every order")
    elif budget == "released":
        raise SpecError(f"budget 'released' cuts the published fields of task {task!r}; it goes with template "
                        f"{jrt_2407.NAME!r}. Choose that, or budget 'document' or 'total'")
