"""Clozes by a language model: behind any OpenAI-compatible address, or in vLLM engines on the cluster's own GPUs.

Every reply is kept (tasks/rewriting/cache.py) under what was asked, so a run that was stopped, killed or repeated pays
only for what was never answered. A server that fails stops the run; a reply that is no cloze costs its record alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from storage import logs
from storage.errors import ConfigError
from storage.progress import Progress, progress
from tasks.datasets.records import Record, Unusable
from tasks.rewriting.cache import Reply, ReplyCache, folder_of
from tasks.rewriting.endpoint_asking import replies
from tasks.rewriting.endpoint_client import Answered, Sending, Stopped
from tasks.rewriting.endpoint_prompts import Ask, ask_for, check
from tasks.rewriting.endpoint_replies import cloze_of
from tasks.rewriting.vllm_batch import PREFIX, VllmBatch
from tasks.specs import RewriterSpec

FIRST_WAIT = 1.0      # before the second try, about [seconds]

log = logs.get("rewriting")


class Endpoint:
    """The rewriter with a model. Raises SpecError or ConfigError for settings that cannot work, before any request.

    cache_folder  None = `cache/rewriting` of the home of artifacts
    first_wait    about how long before the second try; it doubles from try to try [seconds]
    bill          requests sent (all tries), retries among them; records answered from replies kept before (cached);
                  tokens_in and tokens_out as the server counts them, and their cost at the spec's prices, of new replies
                  alone; records without a cloze (failed)
    """

    def __init__(self, spec: RewriterSpec, cache_folder: Path | None = None, first_wait: float = FIRST_WAIT) -> None:
        check(spec)
        self.spec = spec
        self.vllm = VllmBatch(spec) if spec.url.startswith(PREFIX) else None
        self.sending = None if self.vllm else Sending.of(spec, first_wait)
        self.cache_folder = cache_folder or folder_of()
        self.wanted = 0      # replies that were asked for, or found, by calls before this one
        self.bill: dict[str, int | float] = {"requests": 0, "cached": 0, "tokens_in": 0, "tokens_out": 0, "cost": 0.0,
                                             "retries": 0, "failed": 0}

    def clozes(self, records: Sequence[Record]) -> Iterator[str | Unusable]:
        """One a record, in order. Raises ConfigError where the server fails for good: what was answered is kept."""
        asks = [ask_for(self.spec, record) if record.answers else None for record in records]
        wanted = {ask.key: ask for ask in asks if ask is not None}
        cache = ReplyCache(self.cache_folder)
        known: dict[str, Reply] = {}
        try:
            known |= cache.get_many(wanted)
            todo = [ask for key, ask in wanted.items() if key not in known]
            if not self.wanted:
                log.info("%s at %s writes the clozes; replies are kept in %s", self.spec.model, self.spec.url, cache.path)
            yield from self._read(records, asks, known, self._asked(todo, wanted, cache))
        finally:                        # a caller may take the last one and never come back
            cache.close()
            self.wanted += len(known)
            log.info("%s: %s so far", self.spec.model, self.summary())

    def summary(self) -> str:
        """The bill in words."""
        bill = self.bill
        return (f"{bill['requests']:,} requests ({bill['retries']:,} again), {bill['cached']:,} from the cache, "
                f"{bill['tokens_in']:,} + {bill['tokens_out']:,} tokens, cost {bill['cost']:.4f}, "
                f"{bill['failed']:,} without a cloze")

    def _read(self, records: Sequence[Record], asks: Sequence[Ask | None], known: dict[str, Reply],
              stream: Iterator[Answered]) -> Iterator[str | Unusable]:
        """Replies in the order of the records; `known` fills from the stream."""
        new: set[str] = set()          # keys whose reply was paid for here and not handed out yet
        with closing(stream), progress(len(records), "rewrite", "questions") as shown:
            for record, ask in zip(records, asks, strict=True):
                while ask is not None and ask.key not in known:
                    answered = next(stream)
                    known[answered.key] = answered.reply
                    self._pay(answered)
                    if answered.tries:
                        new.add(answered.key)
                yield self._one(record, ask, known, new, shown)

    def _one(self, record: Record, ask: Ask | None, known: dict[str, Reply], new: set[str],
             shown: Progress) -> str | Unusable:
        if ask is None:
            found: str | Unusable = Unusable(record.id, "no_answer", record.question)
        else:
            self.bill["cached"] += ask.key not in new
            new.discard(ask.key)
            found = cloze_of(known[ask.key], record.answers[0], record.id)
        self.bill["failed"] += isinstance(found, Unusable)
        shown.advance()
        shown.note(self.summary())
        return found

    def _asked(self, todo: list[Ask], wanted: dict[str, Ask], cache: ReplyCache) -> Iterator[Answered]:
        """New replies; a failure of the server, or an interruption, says what is done and that it is kept."""
        ask = self.vllm.replies(todo, cache) if self.vllm else replies(self.sending, todo, self.spec.concurrency, cache)
        failure = None
        try:
            yield from ask
        except Stopped as stopped:
            failure = str(stopped)
        except KeyboardInterrupt:
            log.warning("interrupted: %s", self._kept(wanted, cache))
            raise
        if failure is not None:
            raise ConfigError(f"{failure}. {self._kept(wanted, cache)}")

    def _kept(self, wanted: dict[str, Ask], cache: ReplyCache) -> str:
        kept = self.wanted + len(cache.get_many(wanted))
        return (f"{kept:,} of the {self.wanted + len(wanted):,} replies wanted so far are kept in {cache.path}; run the "
                "same again and only the others are asked for")

    def _pay(self, answered: Answered) -> None:
        bill, reply = self.bill, answered.reply
        bill["requests"] += answered.tries
        bill["retries"] += max(0, answered.tries - 1)
        if answered.tries:
            bill["tokens_in"] += reply.tokens_in
            bill["tokens_out"] += reply.tokens_out
            bill["cost"] = (bill["tokens_in"] * self.spec.price_in + bill["tokens_out"] * self.spec.price_out) / 1e6
