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

from flows import single  # noqa: E402
from flows.study import study  # noqa: E402

AT_ONCE = 1      # flow runs at a time: on one machine a second study would only slow the first down
# Runs of one deployment at a time. The others wait on the server, before they have a process, a core or a GPU.
LIMITS = {"study": 1, "tokenise": 2, "pretrain": 2, "cloze": 2, "evaluate": 2, "perplexity": 2, "extrapolation": 2,
          "deploy": 1, "bench": 1}
TAGS = {"study": ["study"], "tokenise": ["data"], "pretrain": ["training"], "cloze": ["data"], "evaluate": ["evaluation"],
        "perplexity": ["evaluation"], "extrapolation": ["evaluation"], "deploy": ["timing"], "bench": ["timing"]}


def deployments() -> list:
    """One per flow, named after it."""
    return [flow.to_deployment(
        name=flow.name, description=flow.description, tags=["reread", *TAGS[flow.name]],
        concurrency_limit=ConcurrencyLimitConfig(limit=LIMITS[flow.name], collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        entrypoint_type=EntrypointType.MODULE_PATH) for flow in (study, *single.ALL)]


def main(ready: str | None = None) -> None:
    """Serve until stopped; `ready` is a file to create once the deployments exist."""
    found = deployments()
    if ready:
        import threading

        threading.Thread(target=_announce, args=(Path(ready), [f"{d.flow_name}/{d.name}" for d in found]),
                         daemon=True).start()
    serve(*found, limit=AT_ONCE, print_starting_message=False)


def _announce(ready: Path, names: list[str]) -> None:
    """Create `ready` when the server knows every deployment."""
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
    ready.write_text("ready\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
