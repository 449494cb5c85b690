"""Serves every flow as a deployment, so that people can trigger it from the Prefect UI. `reread up` runs this module.

Entrypoints are module paths. With a file path Prefect would load the flow under another module name, and Ray workers
could not unpickle what is defined in it.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from prefect import serve  # noqa: E402
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy  # noqa: E402
from prefect.flows import EntrypointType  # noqa: E402
from prefect.schedules import Schedule  # noqa: E402

from flows import single  # noqa: E402
from flows.nightly import nightly_evaluation  # noqa: E402
from flows.nights import deployment as nights  # noqa: E402
from flows.services.processes import answers  # noqa: E402
from flows.services.servers import LOOK_SECONDS, READY_SECONDS  # noqa: E402
from flows.study import study  # noqa: E402

AT_ONCE = 1      # flow runs at a time: on one machine a second study would only slow the first down
# Runs of one deployment at a time. The others wait on the server, before they have a process, a core or a GPU.
LIMITS = {"study": 1, "tokenise": 2, "pretrain": 2, "cloze": 2, "evaluate": 2, "perplexity": 2, "extrapolation": 2,
          "deploy": 1, "bench": 1, "nightly-evaluation": 1}
TAGS = {"study": ["study"], "tokenise": ["data"], "pretrain": ["training"], "cloze": ["data"], "evaluate": ["evaluation"],
        "perplexity": ["evaluation"], "extrapolation": ["evaluation"], "deploy": ["timing"], "bench": ["timing"],
        "nightly-evaluation": ["evaluation", "nightly"]}


def deployments(nightly: list[Schedule] | None = None) -> list:
    """One per flow, named after it. nightly: when nights are; None = as the settings say."""
    return [flow.to_deployment(
        name=flow.name, description=flow.description, tags=["reread", *TAGS[flow.name]],
        concurrency_limit=ConcurrencyLimitConfig(limit=LIMITS[flow.name], collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        schedules=(nightly or nights.schedules()) if flow is nightly_evaluation else None,
        entrypoint_type=EntrypointType.MODULE_PATH) for flow in (study, *single.ALL, nightly_evaluation)]


def main(ready: str | None = None) -> None:
    """Serve until stopped; `ready` is a file to create once the deployments exist."""
    import threading

    from prefect.client.orchestration import get_client

    nights.schedules()                              # a setting that cannot be read is told before anything else
    _wait_for_prefect()
    with get_client(sync_client=True) as client:
        found = deployments(nights.kept_by_people(client))
    threading.Thread(target=_announce, args=(Path(ready) if ready else None, [f"{d.flow_name}/{d.name}" for d in found]),
                     daemon=True).start()
    # a schedule that somebody paused stays so, and one that runs goes on: nights missed meanwhile are caught up once
    serve(*found, limit=AT_ONCE, print_starting_message=False, pause_on_shutdown=False)


def _wait_for_prefect() -> None:
    """`up` starts this process beside the server, since imports take as long as the server does."""
    import os
    import time

    api, deadline = os.environ.get("PREFECT_API_URL"), time.monotonic() + READY_SECONDS
    while api and not answers(f"{api}/health") and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _announce(ready: Path | None, names: list[str]) -> None:
    """Create `ready` when the server knows every deployment, then make up for a missed night."""
    import time

    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        while names:
            try:
                client.read_deployment_by_name(names[0])
                names = names[1:]
            except (ObjectNotFound, OSError):
                time.sleep(0.3)
        if ready:
            ready.write_text("ready\n")
        nights.catch_up_quietly(client)


if __name__ == "__main__":
    from storage.errors import RereadError

    try:
        main(*sys.argv[1:])
    except RereadError as refusal:
        sys.exit(f"error: {refusal}")
