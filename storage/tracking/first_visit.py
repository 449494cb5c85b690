"""What MLflow's pages remember when somebody opens them for the first time.

They begin as pages for GenAI applications, side bar and all, with the assistant open, and go back to that wherever an
address does not say otherwise, such as from a row of the runs table to its run; the registry begins with an
advertisement. What a browser chose is kept by the browser itself (3.17: `localStorage`, one entry a choice), so the first
page that it gets brings our choices along. A choice that a person made stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REMEMBERED = {"mlflow.workflowType_v1": "machine_learning",                     # `Model training`, at the top left
              "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,            # it opened once: not again by itself
              "_mlflow_model_registry_promo_modal_dismissed_v1": True}          # about aliases, over the registry
SCRIPT = ("<script>try {{ for (const [name, value] of Object.entries({choices})) if (localStorage.getItem(name) === null) "
          "localStorage.setItem(name, JSON.stringify(value)); }} catch (error) {{}}</script>")


def with_choices(page: str) -> str:
    """The page, which remembers before anything else in it looks; a page without a head stays as it is."""
    return page.replace("<head>", "<head>" + SCRIPT.format(choices=json.dumps(REMEMBERED)), 1)


def serve_first_page(app: Any, index: Path) -> None:
    """Answer `/` of a FastAPI application with the page in `index`; without such a file the application answers itself."""
    from fastapi.responses import HTMLResponse
    from starlette.routing import Route

    if not index.is_file():
        return
    page = with_choices(index.read_text(encoding="utf-8"))
    app.router.routes.insert(0, Route("/", lambda request: HTMLResponse(page, headers={"Cache-Control": "no-cache"})))
