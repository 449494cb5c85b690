"""What a person does in the Prefect UI: open a deployment, fill its form, watch a run."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

PRESSES = 3


class Prefect:
    """Its pages, from the one that `reread up` says to open."""

    def __init__(self, page: Any, start: str) -> None:
        self.page, self.start = page, start

    # ------------------------------------------------------------------------------------------------- deployments
    def deployment(self, name: str) -> None:
        """Open the page of a deployment from the list of all."""
        self.page.goto(self.start)
        self.page.get_by_role("row").get_by_role("link", name=name, exact=True).first.click()
        self.page.get_by_role("button", name="Run", exact=True).wait_for()

    def custom_run(self, name: str) -> Form:
        """Open the form of a deployment."""
        self.deployment(name)
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        self.page.get_by_role("heading", name="Parameters").wait_for()
        return Form(self.page)

    # -------------------------------------------------------------------------------------------------------- runs
    def submit(self) -> None:
        """From a form to the page of the run that it made: the message that says so leads there.

        The button does nothing while the page checks what was typed last; then it is pressed again, as anybody would.
        """
        asked: list[str] = []
        self.page.on("request", lambda request: asked.append(request.url) if "create_flow_run" in request.url else None)
        link = self.page.get_by_role("link", name="View run")
        for _ in range(PRESSES):
            self.page.get_by_role("button", name="Submit").click()
            with suppress(Exception):
                link.wait_for(timeout=10_000)
            if asked:
                break
        link.click()
        self.page.wait_for_url(re.compile("/runs/flow-run/"))
        self.page.get_by_role("tab", name="Task Runs").wait_for()

    def until(self, *states: str, seconds: float = 400) -> str:
        """Wait until the open page of a run shows one of these states; which. The tab of task runs shows theirs too, so
        it must not be open."""
        shown = self.page.locator("main").get_by_text(re.compile(rf"^({'|'.join(states)})$")).first
        shown.wait_for(timeout=seconds * 1000)
        return shown.inner_text()

    def tab(self, name: str) -> Any:
        """The content of a tab, opened."""
        self.page.get_by_role("tab", name=name, exact=True).click()
        return self.page.get_by_role("tabpanel", name=name, exact=True)

    def follow(self, link: Any) -> Any:
        """The page that a link opens: another one, if it says so."""
        if link.get_attribute("target") != "_blank":
            link.click()
            return self.page
        with self.page.expect_popup() as opened:
            link.click()
        return opened.value

    def cancel(self) -> None:
        """The run whose page is open."""
        self.page.get_by_role("main").get_by_role("button", name="Open menu").first.click()
        self.page.get_by_role("menuitem", name="Cancel", exact=True).click()
        self.page.get_by_role("button", name="Cancel Flow Run").click()


class Form:
    """Fields by the names that stand above them."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def write(self, name: str, text: str) -> None:
        self.page.get_by_role("textbox", name=_label(name)).fill(text)

    def number(self, name: str, value: float) -> Any:
        """The box, filled."""
        box = self.page.get_by_role("spinbutton", name=_label(name))
        box.fill(str(value))
        return box

    def choose(self, name: str, *options: str) -> None:
        """Of a select, by mouse."""
        self.page.get_by_role("button", name=f"Select {name}", exact=True).click()
        for option in options:
            self.page.get_by_role("option", name=option, exact=True).click()
        if self.page.get_by_role("listbox").is_visible():
            self.page.keyboard.press("Escape")

    def tab(self, name: str) -> None:
        """Of a group that can be one of several things."""
        self.page.get_by_role("tab", name=name, exact=True).click()


def _label(name: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(name)}( \(Optional\))?$")
