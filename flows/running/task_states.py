"""Tell Prefect's server how a task run ended whose own process could not: it was killed, and would stay Pending or
Running for ever."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from storage import logs

log = logs.get("flows.task_states")


def ended(task_run: UUID, state: Any) -> None:
    """Set the state, whatever the server thinks of it. A server that does not know the task run, since its process died
    before it could report, has nothing to show and nothing to correct."""
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.set_task_run_state(task_run, state, force=True)
    except Exception as failure:  # noqa: BLE001 - only the page of a task run that is over anyway
        log.debug("state of task run %s not set: %s", task_run, failure)
