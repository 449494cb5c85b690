"""Screenshots of one test, numbered in the order in which they were taken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

TALLEST = 4000      # pixels
HEIGHT = "Math.max(...[...document.querySelectorAll('*')].map(one => one.scrollHeight))"
STILL = "getComputedStyle(document.body).opacity === '1'"


class Camera:
    """`camera(page, "the form")` writes <folder>/01-the-form.png; pictures of an earlier run are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.taken = folder, 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def __call__(self, page: Any, name: str, whole: bool = False) -> Path:
        """whole: also what has to be scrolled to, as both UIs scroll inside of the page."""
        self.taken += 1
        path = self.folder / f"{self.taken:02}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}.png"
        screen = page.viewport_size
        if whole:
            page.set_viewport_size({**screen, "height": min(TALLEST, max(screen["height"], page.evaluate(HEIGHT)))})
        page.wait_for_function(STILL)
        page.screenshot(path=path, animations="disabled")
        if whole:
            page.set_viewport_size(screen)
        return path
