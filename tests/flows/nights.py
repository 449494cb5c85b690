"""A world for tests of nights: a store, real prompts, a real registry, and checkpoints that read as well as they say."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flows.nights.clock import Clock
from flows.nights.ledger import Ledger
from flows.nights.night import Night
from flows.running.work import Order, perform
from flows.suites import Suite
from storage.artifacts import Store
from storage.tracking import Tracking
from storage.tracking.registry import Registry
from tasks import evaluate
from tasks.predictions import Answer
from tasks.tokenizers import load_tokenizer
from tests.tasks.documents import artifacts

SUITE = {"name": "tests", "evaluations": [
    {"cloze": {"task": "pydocs", "orders": ["default", "twice"], "document_tokens": 60, "limit": 16,
               "task_options": {"columns": ["natural", "swap"]}}, "evaluate": {"bootstrap": 200, "generation_tokens": 12}},
    {"cloze": {"task": "lookup", "orders": ["default"], "document_tokens": 60, "limit": 16},
     "evaluate": {"bootstrap": 200, "generation_tokens": 12}}]}


class World:
    """`night()` runs one night at the hour that `now` says; `register()` adds a version."""

    def __init__(self, home: Path, monkeypatch, suite: dict = SUITE) -> None:
        self.store, self.monkeypatch = Store(home), monkeypatch
        self.suite = Suite.model_validate(suite)
        self.now = datetime(2026, 3, 2, 2, 0, 5, tzinfo=UTC)
        self.tracking = Tracking()
        self.registry = Registry()
        self.corpus, self.shards = artifacts(self.store)
        self.skills: dict[str, float] = {}              # checkpoint -> share of prompts it reads right
        self.code = "1"
        self.asked: list[str] = []                      # titles of the stages that ran
        self.breaks: set[str] = set()                   # checkpoints whose evaluation fails
        monkeypatch.setattr(evaluate, "_asked", self._answers)
        monkeypatch.setattr(evaluate, "_code", lambda mixers, checkpoint: self.code)

    def register(self, skill: float, name: str = "quick-pydocs", **tags: str) -> str:
        """A checkpoint of that skill as a new version; returns its number."""
        tokenizer = load_tokenizer(self.store.path(self.shards) / "tokenizer")
        made = self.store.produce("checkpoint", {"number": len(self.skills)}, {"shards": self.shards}, "0",
                                  lambda folder: tokenizer.save(folder / "tokenizer"))
        self.skills[made] = skill
        run = self.tracking.start(self.tracking.experiment("quick"), made)
        self.tracking.artifacts(run, self.store.path(made) / "manifest.json", "model")
        time.sleep(0.002)                               # the registry orders by milliseconds
        return self.tracking.register(name, run, "model", {
            "checkpoint": made, "architecture": "jrt", "model": "jrt-tiny", "size": "tiny", "seed": "0", **tags})

    def later(self, days: int = 1) -> None:
        self.now += timedelta(days=days)

    def planned(self, **changes) -> Night:
        return Night(**{"suite": self.suite, "store": self.store, "clock": Clock("0 2 * * *", "UTC"),
                        "evaluate": self.evaluate, "registry": self.registry, "ledger": Ledger(self.tracking),
                        "now": lambda: self.now, **changes})

    def night(self, **changes):
        """One night from beginning to end."""
        night = self.planned(**changes)
        report = night.run()
        night.end(report)
        return report

    def evaluate(self, entry) -> None:
        """The stages of a plan, one after another in this process."""
        for stage in entry.plan.missing():
            self.asked.append(stage.title)
            perform(Order(stage.kind, stage.module, stage.title, stage.spec, stage.inputs, self.store.root))

    def tags(self, number: str, name: str = "quick-pydocs") -> dict[str, str]:
        return self.registry.version(f"models:/{name}/{number}").tags

    def _answers(self, spec, asked, scored, checkpoint, store, tokenizer, maximum_new, folder):
        """Looks the line up in the prompt, and forgets a share of them: always the same ones, fewer with more skill."""
        if checkpoint in self.breaks:
            raise ValueError("the weights are damaged")
        found = {}
        for prompt in asked:
            *lines, last = tokenizer.decode(prompt.ids[prompt.lead:]).splitlines()
            line = next((line for line in reversed(lines) if line.startswith(last)), None)
            luck = int(hashlib.sha256(prompt.key.encode()).hexdigest()[:8], 16) / 16 ** 8
            said = line[len(last):].strip() if line and luck < self.skills[checkpoint] else "nothing"
            found[prompt.key] = Answer((1, 2), said, 0.001)
        return found, {}
