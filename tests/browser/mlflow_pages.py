"""What a person does in the MLflow UI."""

from __future__ import annotations

import re
from typing import Any


class MLflow:
    """Its pages; `page` shows one of them."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def undisturbed(self) -> None:
        """Close the assistant, which opens by itself on a first visit of a wide screen."""
        self.page.get_by_role("heading", name="Runs").wait_for()
        if (panel := self.page.get_by_placeholder("Ask a question...")).is_visible():
            self.page.get_by_role("button", name="Close").click()
            panel.wait_for(state="hidden")

    def sort(self, column: str, descending: bool) -> None:
        """The table of runs, by the list that the button `Sort` opens."""
        self.page.get_by_role("button", name=re.compile("^Sort: ")).click()
        self.page.get_by_placeholder("Search").last.fill(column)
        self.page.get_by_role("menuitemcheckbox", name=column, exact=True).click()
        self.page.get_by_role("button", name=re.compile("^Sort: ")).click()
        self.page.get_by_role("button", name=f"Sort {'descending' if descending else 'ascending'}").click()
        self.page.keyboard.press("Escape")
        self.page.wait_for_url(re.compile(f"orderByAsc={'false' if descending else 'true'}"))

    def link(self, row: int) -> Any:
        """To the run in a row of the table, counted from the top: a row that moves keeps its place in the document."""
        return self.page.locator(f'[role="row"][row-index="{row}"]').get_by_role("link", name=re.compile("^evaluate")).first

    def addresses(self, rows: int) -> list[str]:
        """Of the first runs in the table, from the top."""
        return [self.link(row).get_attribute("href") for row in range(rows)]

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()
