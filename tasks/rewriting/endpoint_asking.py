"""Many questions at once, a bounded number of requests, replies in order: in this process, or spread over Ray's workers.

Each process runs one event loop in a thread of its own, so that a caller who is interrupted, or stops taking replies,
is free at once: requests on their way get a moment to come home, since they are paid for, the others are not sent.
A reply is in the cache before anybody sees it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import takewhile
from pathlib import Path

from storage.errors import RereadError
from tasks.parallel import parallel_map
from tasks.rewriting.cache import FILE, ReplyCache
from tasks.rewriting.endpoint_client import Answered, Client, Sending, Stopped
from tasks.rewriting.endpoint_prompts import Ask

AHEAD = 4             # questions under way or not yet taken, for each request at once
GRACE = 5.0           # for requests on their way when the work stops [seconds]
POLL = 0.05           # between looks at a question that somebody else is asking [seconds]
RAY_CPUS = 0.1        # of a worker: it waits for the network
CHUNK = 8             # questions of one Ray task, for each request at once


def replies(sending: Sending, asks: Sequence[Ask], concurrency: int, cache: ReplyCache) -> Iterator[Answered]:
    """The replies to questions with keys of their own, in order. Raises Stopped where there is no point in going on.

    concurrency: requests at once, over all workers where Ray runs.
    """
    workers = _workers(concurrency)
    if workers is None:
        yield from _here(sending, asks, concurrency, cache)
        return
    share = concurrency // workers
    chunks = [asks[start: start + share * CHUNK] for start in range(0, len(asks), share * CHUNK)]
    work = partial(_chunk, sending, share, str(cache.folder), _place(cache.folder))
    failures: list[str] = []
    unless_failed = takewhile(lambda chunk: not failures, chunks)
    for answered, failure in parallel_map(work, unless_failed, cpus=RAY_CPUS, in_flight=workers,
                                          describe="rewrite questions"):
        for each in answered:
            keep(cache, sending.model, each)      # once more for a worker on another machine
            yield each
        failures += [failure] if failure else []
    if failures:
        raise Stopped(failures[0])


def keep(cache: ReplyCache, model: str, answered: Answered) -> None:
    """Write a model's reply down; what a server said instead of one is not kept."""
    if answered.reply.finish != "malformed":
        cache.put(answered.key, answered.reply, model)


def _here(sending: Sending, asks: Sequence[Ask], concurrency: int, cache: ReplyCache | None) -> Iterator[Answered]:
    """The replies by requests of this process. cache: None on a machine that must not open it."""
    loop = _Loop(sending, concurrency, cache)
    waiting: deque[Future] = deque()
    try:
        for ask in asks:
            if len(waiting) >= AHEAD * concurrency:
                yield loop.result(waiting.popleft())
            waiting.append(loop.submit(ask))
        while waiting:
            yield loop.result(waiting.popleft())
    finally:
        loop.close()


class _Loop:
    """An event loop in a thread, its client, and the tasks in it. The first failure stops all of them."""

    def __init__(self, sending: Sending, concurrency: int, cache: ReplyCache | None) -> None:
        self.client = Client(sending)
        self.cache = cache
        self.failure: Stopped | RereadError | None = None
        self.free = asyncio.Semaphore(concurrency)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="rewriting", daemon=True)
        self.thread.start()

    def submit(self, ask: Ask) -> Future:
        return asyncio.run_coroutine_threadsafe(self._guarded(ask), self.loop)

    def result(self, future: Future) -> Answered:
        """Wait for it; after a failure, the failure that stopped the work."""
        try:
            return future.result()
        except CancelledError:
            pass
        raise self.failure or Stopped("the work was stopped")

    def close(self) -> None:
        """Send nothing more, give requests on their way GRACE seconds, and end the thread."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ending.result(GRACE + 1)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(1)
            if not self.loop.is_running():
                self.loop.close()

    async def _guarded(self, ask: Ask) -> Answered:
        try:
            return await self._answer(ask)
        except (Stopped, RereadError) as error:
            self.failure = self.failure or error
            self.client.stopping.set()
            raise asyncio.CancelledError from None

    async def _answer(self, ask: Ask) -> Answered:
        """Ask, unless somebody has asked or is asking the same."""
        if self.cache is None:
            async with self.free:
                return await self.client.answer(ask)
        while True:
            async with self.free:
                with self.cache.claim(ask.key) as mine:
                    if (known := self.cache.get(ask.key)) is not None:
                        return Answered(ask.key, known, 0)
                    if mine:
                        answered = await self.client.answer(ask)
                        await asyncio.to_thread(keep, self.cache, self.client.sending.model, answered)
                        return answered
            if self.client.stopping.is_set():
                raise asyncio.CancelledError
            await asyncio.sleep(POLL)

    async def _end(self) -> None:
        self.client.stopping.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.client.close()


# ------------------------------------------------------------------------------------------------------------- Ray
def _workers(concurrency: int) -> int | None:
    """Ray tasks among which the requests divide evenly, no more than it has CPUs; None without Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    most = max(1, min(concurrency, int(ray.cluster_resources().get("CPU", 1))))
    return max(count for count in range(1, most + 1) if concurrency % count == 0)


def _chunk(sending: Sending, concurrency: int, folder: str, place: str,
           asks: Sequence[Ask]) -> tuple[list[Answered], str | None]:
    """The work of one Ray task: what was answered, and why it stopped before the end, if it did."""
    cache = ReplyCache(Path(folder)) if _place(Path(folder)) == place else None
    answered: list[Answered] = []
    try:
        for each in _here(sending, asks, concurrency, cache):
            answered.append(each)
    except Stopped as stopped:
        return answered, str(stopped)
    finally:
        if cache is not None:
            cache.close()
    return answered, None


def _place(folder: Path) -> str:
    """Names the cache of this machine: equal only where it is the same file on the same host."""
    try:
        found = (folder / FILE).stat()
    except FileNotFoundError:
        return "nowhere"
    return f"{socket.gethostname()}/{found.st_dev}/{found.st_ino}"
