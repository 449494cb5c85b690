"""How long a stage may take, and which failures are worth another attempt.

The hours are there to end what hangs, not what is slow. They count from when a stage is handed to Ray, so on a full
cluster waiting counts too. `REREAD_STAGE_HOURS=pretrain=48,evaluate=6` changes them.
"""

from __future__ import annotations

import errno
import math
import os

from flows.running.schedule import PRIORITY
from storage.errors import RereadError, SpecError

VARIABLE = "REREAD_STAGE_HOURS"
HOURS = {"corpus": 12.0, "questions": 6.0, "tokenise": 12.0, "rows": 12.0, "cloze": 6.0, "bigrams": 6.0,
         "evaluate": 48.0, "perplexity": 24.0, "extrapolation": 24.0, "pretrain": 336.0, "deploy": 12.0,
         "bench": 12.0, "report": 2.0}
RETRY_SECONDS = (2.0, 8.0, 32.0)     # before each further attempt
# of the operating system's refusals, those that a pause does not change
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST,
           errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.EINVAL}
# of libraries that raise no OSError when a connection fails, by name, so that none is imported for it
PASSING = {"httpx.TransportError", "aiohttp.client_exceptions.ClientConnectionError",
           "ray.exceptions.WorkerCrashedError", "ray.exceptions.ActorDiedError", "ray.exceptions.NodeDiedError",
           "ray.exceptions.ActorUnavailableError"}
# how Ray tells that the process of a stage died under it
DEATHS = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")


def stage_seconds() -> dict[str, float]:
    """Seconds that each kind of stage may take.

    :raises SpecError: REREAD_STAGE_HOURS is not a list of kind=hours
    """
    hours = dict(HOURS)
    for item in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        kind, _, text = (part.strip() for part in item.partition("="))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if kind not in PRIORITY or not 0 < value < math.inf:
            raise SpecError(f"{VARIABLE}: {item!r} is not a kind of stage and its hours; write for example "
                            f"pretrain=48,evaluate=6. Kinds: {', '.join(sorted(PRIORITY))}")
        hours[kind] = value
    return {kind: value * 3600 for kind, value in hours.items()}


def may_pass(error: BaseException) -> bool:
    """Whether the same work may succeed after a pause: a connection that broke, a disk that stumbled, a helper process
    that died. A mistake in what was asked, a full disk or a fault in the code fails the same way again."""
    if isinstance(error, RereadError):
        return False
    if isinstance(error, OSError):
        return error.errno not in LASTING
    return any(f"{base.__module__}.{base.__qualname__}" in PASSING for base in type(error).__mro__)


def is_death(error: BaseException) -> bool:
    """Whether Ray says so about the stage's own process: it was killed, or its machine is gone."""
    return type(error).__module__.startswith("ray.") and type(error).__name__ in DEATHS
