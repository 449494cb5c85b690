"""Engines run forward, backward and update; the loop does not know which one it drives.

`InProcess` is plain torch. `DeepSpeedEngine` (deepspeed_engine.py) does the same on Ray workers; with ZeRO-0, float32
and one worker the two give the same bits, since losses, clipping and optimiser are the same calls.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from models.checkpoint import save_model
from models.objectives import Batch, losses, target_losses
from tasks.specs import TrainSpec
from tasks.training import optimiser as optimisers
from tasks.training.schedule import set_rates

STATE = "state.pt"


class Scored(nn.Module):
    """A language model whose forward is its loss, so that an engine can wrap it as one module."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, batch: Batch, each: bool = False):
        """(total, {term: mean}), or with `each` {term: loss of every target [nats]}."""
        with self._precision(batch.ids_BL.device.type):
            return target_losses(self.model, batch) if each else losses(self.model, batch)

    def _precision(self, device: str) -> AbstractContextManager:
        return torch.autocast(device, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()


class Engine(Protocol):
    """What the loop needs. `worker` of `workers`; `device` holds the batches."""

    worker: int
    workers: int
    device: torch.device
    model: nn.Module

    def losses(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(total, {term: mean}) of one micro-batch."""

    def backward(self, total: torch.Tensor) -> None:
        """Add the gradient of total ÷ micro-batches of a step."""

    def step(self, share: float) -> float:
        """Clip, update at `share` of the peak rates, forget the gradients. Returns the norm before clipping."""

    def each(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Loss of every target, no gradients."""

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over workers; the same on every worker."""

    def save(self, folder: Path, facts: dict) -> None:
        """Write weights, optimiser, random states and `facts` below `folder`."""

    def load(self, folder: Path) -> dict:
        """Restore what `save` wrote; returns the facts."""

    def export(self, folder: Path) -> None:
        """Write the model (config.json, model.safetensors): called on every worker, written by the first."""


class InProcess:
    """One worker in this process, on the CPU or on one GPU."""

    worker, workers = 0, 1

    def __init__(self, model: nn.Module, spec: TrainSpec, accumulations: int, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.module = Scored(model.to(self.device), spec.precision).train()
        self.model, self.clip, self.accumulations = model, spec.optimiser.clip, accumulations
        self.optimiser = optimisers.build(model, spec.optimiser)

    def losses(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.module(batch)

    def backward(self, total: torch.Tensor) -> None:
        (total / self.accumulations).backward()

    def step(self, share: float) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        set_rates(self.optimiser, share)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return float(norm)

    def each(self, batch: Batch) -> dict[str, torch.Tensor]:
        return each_loss(self.module, batch)

    def sum(self, values: list[float]) -> list[float]:
        return values

    def save(self, folder: Path, facts: dict) -> None:
        torch.save({"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
                    "random": random_states(), "facts": facts}, folder / STATE)

    def load(self, folder: Path) -> dict:
        state = torch.load(folder / STATE, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        restore_random_states(state["random"])
        return state["facts"]

    def export(self, folder: Path) -> None:
        save_model(self.model, folder)


def each_loss(module: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """Forward in evaluation mode without gradients; the mode is put back."""
    module.eval()
    try:
        with torch.no_grad():
            return module(batch, each=True)
    finally:
        module.train()


def seed_generators(seed: int) -> None:
    """Seed the global generators. Our mixers and masks never draw from them; somebody's dropout might."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def random_states() -> dict:
    """States of the global generators, as plain numbers and tensors. (Training itself draws by counters.)"""
    numpy_state = np.random.get_state(legacy=False)
    states = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": {
        **numpy_state, "state": {"key": numpy_state["state"]["key"].tolist(), "pos": numpy_state["state"]["pos"]}}}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict) -> None:
    """Put the generators back to what `random_states` recorded."""
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    inner = states["numpy"]["state"]
    np.random.set_state({**states["numpy"], "state": {"key": np.array(inner["key"], np.uint32), "pos": inner["pos"]}})
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
