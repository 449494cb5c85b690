"""Work spread over a cluster, if there is one.

`parallel_map` is the only place in tasks that knows of Ray. Where Ray has been started by the caller the items run as
plain Ray tasks; everywhere else they run one after the other in this process, with the same results in the same order.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    cpus: float = 1,
    in_flight: int | None = None,
    describe: str = "work",
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in the order of the items.

    At most `in_flight` items are unfinished or unread at any time (default: twice what the cluster can run at once),
    so `items` may be endless and results may be large. A consumer that stops early stops the rest. An error of an item
    reaches the caller as it was raised. `describe` names the tasks in Ray's dashboard.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        for item in items:
            yield function(item)
        return
    if in_flight is None:
        in_flight = max(2, int(2 * ray.cluster_resources().get("CPU", 1) / max(cpus, 1e-3)))
    task = ray.remote(_apply).options(num_cpus=cpus, name=describe)
    shared = ray.put(_Function(function))
    waiting: deque[Any] = deque()
    try:
        for item in items:
            if len(waiting) >= in_flight:
                yield _result(ray, waiting.popleft())
            waiting.append(task.remote(shared, item))
        while waiting:
            yield _result(ray, waiting.popleft())
    finally:
        for reference in waiting:
            ray.cancel(reference)


class _Function:
    """Carries the function through the object store once, whatever it has bound, instead of with every item."""

    def __init__(self, function: Callable) -> None:
        self.call = function


def _apply(function: _Function, item: Any) -> Any:
    return function.call(item)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else error) from None
