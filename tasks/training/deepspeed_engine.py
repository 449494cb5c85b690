"""DeepSpeed as an engine: ZeRO 0 to 3, one code path for one CPU worker and for many GPUs.

Differences from DeepSpeed's defaults, all measured (see platform facts in the docs):
* the optimiser is a torch object and the schedule is ours, so no operator is compiled and rates survive a resume;
* `deepspeed_shm_comm` is declared incompatible before `initialize`: on the CPU DeepSpeed would otherwise always build it
  (40 s, needs ninja and a compiler); plain gloo serves;
* with ZeRO-0 gradients are clipped here by torch's function, which also returns the norm; DeepSpeed 0.19 computes the
  same in another order and keeps the norm to itself. From ZeRO-1 on only DeepSpeed sees the whole gradient.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from models.checkpoint import save_model
from models.objectives import Batch
from tasks.specs import TrainSpec
from tasks.training import optimiser as optimisers
from tasks.training.engine import Scored, each_loss, random_states, restore_random_states
from tasks.training.schedule import set_rates

TAG = "deepspeed"


class DeepSpeedEngine:
    """An engine over `deepspeed.initialize`; torch.distributed must be set up (Ray Train does that)."""

    def __init__(self, model: nn.Module, spec: TrainSpec, accumulations: int, device: torch.device) -> None:
        import deepspeed

        if device.type == "cpu":
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.worker, self.workers, self.device = dist.get_rank(), dist.get_world_size(), device
        self.model, self.clip, self.stage = model.to(device), spec.optimiser.clip, spec.zero_stage
        optimiser = optimisers.build(model, spec.optimiser)
        self.engine, self.optimiser, _, _ = deepspeed.initialize(
            model=Scored(model, spec.precision), optimizer=optimiser, config=configuration(spec, model, accumulations))
        self.engine.train()

    def losses(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.engine(batch)

    def backward(self, total: torch.Tensor) -> None:
        self.engine.backward(total)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()   # only counts the micro-batch; the loop's `step` follows the last one

    def step(self, share: float) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip) if self.stage == 0 else None
        set_rates(self.optimiser, share)
        self.engine.step()
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def each(self, batch: Batch) -> dict[str, torch.Tensor]:
        return each_loss(self.engine, batch)

    def sum(self, values: list[float]) -> list[float]:
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(summed)
        return summed.tolist()

    def save(self, folder: Path, facts: dict) -> None:
        self.engine.save_checkpoint(str(folder), tag=TAG, client_state={"facts": facts, "random": random_states()})

    def load(self, folder: Path) -> dict:
        _, client = self.engine.load_checkpoint(str(folder), tag=TAG)
        restore_random_states(client["random"])
        return client["facts"]

    def export(self, folder: Path) -> None:
        if self.stage == 3:
            import deepspeed

            with deepspeed.zero.GatheredParameters(list(self.model.parameters())):
                self._save(folder)
        else:
            self._save(folder)

    def _save(self, folder: Path) -> None:
        if self.worker == 0:
            save_model(self.model, folder)


def configuration(spec: TrainSpec, model: nn.Module, accumulations: int) -> dict:
    """DeepSpeed's JSON for this run. Batch sizes only set the number of micro-batches: rows come from our sources."""
    size = sum(parameter.numel() for parameter in model.parameters())
    return {
        "train_micro_batch_size_per_gpu": spec.micro_batch_rows,
        "gradient_accumulation_steps": accumulations,
        "gradient_clipping": spec.optimiser.clip if spec.zero_stage else 0.0,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": spec.zero_stage, "reduce_bucket_size": min(size, 5 * 10**7)},
    }
