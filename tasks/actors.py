"""An evaluation spread over Ray actors: each loads the model once, takes groups of prompts, and gives answers back.

A group goes to whoever is free, longest prompts first, and its results are kept as soon as they come. An actor that dies
is replaced and its group asked again; a group that takes TRIES actors with it ends the evaluation, and what is there is
kept. Without a running Ray (and without RAY_ADDRESS) a local one is started for the time it takes.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage import logs
from storage.artifacts import Store
from storage.errors import SpecError, StageFailed
from tasks.likelihood import FOLDER as LIKELIHOODS
from tasks.likelihood import Likelihood, Pair, likelihoods, read_length
from tasks.loading import model_of, tokenizer_of
from tasks.predictions import FOLDER as ANSWERS
from tasks.predictions import Answer, Kept, Prompt, answers, as_read, check_room, threads
from tasks.specs import EvaluateSpec

TRIES = 3            # actors lost to one group before the evaluation gives up
SHARES = 4           # groups per actor, at least, so that nobody waits long for the last
LARGEST = 8          # batches in a group at most
PATIENCE = 60.0      # seconds between two words about waiting

log = logs.get("tasks.actors")


def wanted(spec: EvaluateSpec) -> bool:
    """Whether actors answer, rather than this process."""
    return spec.actors > 1 or spec.gpus_per_actor > 0


class Reader:
    """What runs in an actor. Nothing is loaded before `ready`, so that errors come back as they were raised."""

    def __init__(self, root: str, checkpoint: str, spec: EvaluateSpec, maximum_new: int) -> None:
        self.root, self.checkpoint, self.spec, self.maximum_new = root, checkpoint, spec, maximum_new
        self.model = self.tokenizer = None

    def ready(self, lengths: Sequence[int]) -> int:
        """Load the model, check that texts of these lengths fit; the process id."""
        store = Store(self.root)
        if self.model is None:
            self.tokenizer = tokenizer_of(self.checkpoint, store, self.spec.tokenizer)
            self.model = model_of(self.checkpoint, store, self.spec.dtype)
        check_room(lengths, self.model, self.spec, self.maximum_new)
        return os.getpid()

    def answers(self, prompts: Sequence[Prompt]) -> dict[str, Answer]:
        """Answers by prompt key."""
        found: dict[str, Answer] = {}
        with threads(self.spec.threads):
            answers(prompts, self.model, self.tokenizer, self.spec, self.maximum_new, found.update)
        return found

    def likelihoods(self, asked: Sequence[Pair]) -> dict[str, Likelihood]:
        """Likelihoods by key."""
        found: dict[str, Likelihood] = {}
        with threads(self.spec.threads):
            likelihoods(asked, self.model, self.tokenizer, self.spec, found.update)
        return found


class Crew:
    """Actors of one evaluation. Use it as a context manager; leaving it lets them go."""

    def __init__(self, root: str, checkpoint: str, spec: EvaluateSpec, maximum_new: int, reader: type = Reader) -> None:
        self.spec, self.arguments, self.reader = spec, (root, checkpoint, spec, maximum_new), reader
        self.idle: list[Any] = []
        self.all: list[Any] = []
        self.lengths: list[int] = []

    def __enter__(self) -> Crew:
        self._connection = connected(self.spec)
        self.ray = self._connection.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for actor in self.all:
            self.ray.kill(actor)
        self._connection.__exit__(*error)

    def answer(self, prompts: Sequence[Prompt], folder: Path) -> dict[str, Answer]:
        """As tasks.predictions.answer."""
        return self._keep(prompts, folder / ANSWERS, Answer, "prompts", "answers",
                          lambda prompt: len(as_read(prompt, self.spec).ids))

    def score(self, asked: Sequence[Pair], folder: Path) -> dict[str, Likelihood]:
        """As tasks.likelihood.score."""
        return self._keep(asked, folder / LIKELIHOODS, Likelihood, "answers", "likelihoods",
                          lambda pair: read_length(pair, self.spec))

    def _keep(self, work: Sequence[Any], folder: Path, kind: type, unit: str, method: str,
              length: Callable[[Any], int]) -> dict[str, Any]:
        self.lengths = [length(each) for each in work] if method == "answers" else []
        with Kept(folder, kind, len(work), unit) as kept:
            left = sorted((each for each in work if each.key not in kept.done), key=lambda each: (-length(each), each.key))
            self.run(method, groups(left, self.spec), kept.add)
        return {each.key: kept.done[each.key] for each in work}

    def run(self, method: str, work: Sequence[Sequence[Any]], emit: Callable[[dict[str, Any]], None]) -> None:
        """Have every group of `work` done by somebody; `emit` gets each result as it comes.

        Raises what an actor raised, or StageFailed where actors keep dying.
        """
        waiting, lost = deque(range(len(work))), Counter()
        busy: dict[Any, tuple[Any, int | None]] = {}              # what is under way -> (actor, group; None: loading)
        for _ in range(min(self.spec.actors, len(work)) - len(self.idle)):
            self._begin(busy)
        while waiting or any(group is not None for _, group in busy.values()):
            while waiting and self.idle:
                actor, group = self.idle.pop(), waiting.popleft()
                busy[getattr(actor, method).remote(work[group])] = actor, group
            done, _ = self.ray.wait(list(busy), num_returns=1, timeout=PATIENCE)
            if not done:
                log.info("waiting for Ray: %d actors under way, %d groups left", len(busy), len(waiting))
                continue
            actor, group = busy.pop(done[0])
            result = self._result(done[0])
            if isinstance(result, _Lost):
                lost[group] += 1
                if lost[group] == TRIES:
                    raise StageFailed(f"{TRIES} actors died {'loading the model' if group is None else 'over one group'}: "
                                      f"{result.reason}; what was answered is kept, so the same command goes on from "
                                      "there (with less memory a smaller batch_rows or fewer actors help)")
                log.warning("an actor died (%s); another takes its place", result.reason)
                if group is not None:
                    waiting.appendleft(group)
                self._begin(busy)
                continue
            self.idle.append(actor)
            if group is not None:
                emit(result)

    def _begin(self, busy: dict[Any, tuple[Any, int | None]]) -> None:
        """Start one more actor."""
        actor = self.ray.remote(self.reader).options(
            num_cpus=self.spec.threads, num_gpus=self.spec.gpus_per_actor).remote(*self.arguments)
        self.all.append(actor)
        busy[actor.ready.remote(self.lengths)] = actor, None

    def _result(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, Exception) else error) from None
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            return _Lost(str(error).strip().splitlines()[0])


class _Lost:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def groups(work: Sequence[Any], spec: EvaluateSpec) -> list[Sequence[Any]]:
    """`work` in pieces that one actor does at a time: a few for each actor, a batch at least, eight at most."""
    share = -(-len(work) // (SHARES * spec.actors))
    size = min(max(share, spec.batch_rows), LARGEST * spec.batch_rows)
    return [work[start:start + size] for start in range(0, len(work), size)]


@contextmanager
def connected(spec: EvaluateSpec) -> Iterator[Any]:
    """Ray as it runs, at RAY_ADDRESS, or local for the duration. SpecError where it has too few GPUs for one actor."""
    import ray

    started = not ray.is_initialized()
    if started:
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(**quiet)
        else:
            ray.init(address="local", num_cpus=max(os.cpu_count() or 1, spec.actors * spec.threads),
                     object_store_memory=256 << 20, include_dashboard=False, **quiet)
    try:
        has = ray.cluster_resources().get("GPU", 0)
        if spec.gpus_per_actor > has:
            raise SpecError(f"gpus_per_actor {spec.gpus_per_actor:g} is more than the {has:g} GPUs that Ray knows of; set it "
                            "to 0 to answer on CPUs")
        yield ray
    finally:
        if started:
            ray.shutdown()
