"""AdamW, or Muon for matrices with AdamW for the rest, always as one `torch.optim.Optimizer`.

Parameters fall into groups by what the model says they are: `matrices` (2-D, not embedding or head), `spared` (biases,
norms, embeddings and whatever a mixer names in `no_decay`: no weight decay) and `decayed`, the rest. Every group
remembers its peak rate under `peak`, which the schedule multiplies.

Muon is torch's own class with another Newton–Schulz step. torch 2.13 orthogonalises one matrix at a time in bfloat16;
measured on one thread of an EPYC without bfloat16 units, 16 matrices of 128×128: 281 ms a step. Here all matrices of
one shape are orthogonalised together, on the CPU in float32: 13 ms. A whole step of a tiny model takes 70 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from storage.errors import SpecError
from tasks.specs import OptimiserSpec

# Quintic Newton–Schulz coefficients and step count (Jordan 2024), as torch.optim.Muon has them.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7


def orthogonalise(g_NRC: torch.Tensor) -> torch.Tensor:
    """Nearest semi-orthogonal matrices, roughly: singular values end in about [0.7, 1.2]. N matrices at once."""
    a, b, c = COEFFICIENTS
    tall = g_NRC.shape[-2] > g_NRC.shape[-1]
    x_NRC = g_NRC.mT if tall else g_NRC
    x_NRC = x_NRC / x_NRC.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram_NRR = x_NRC @ x_NRC.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=a)
    return x_NRC.mT if tall else x_NRC


class BatchedMuon(torch.optim.Muon):
    """torch.optim.Muon with equal shapes orthogonalised in one call (see above for why). Same state, same rates."""

    @torch.no_grad()
    def step(self, closure=None):
        """One update; `closure` is accepted for the interface's sake and evaluated first."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            by_shape: dict[tuple, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault((tuple(parameter.shape), parameter.device), []).append(parameter)
            for (shape, device), parameters in by_shape.items():
                self._update(parameters, shape, device, group)
        return loss

    def _update(self, parameters: list[torch.Tensor], shape: tuple, device: torch.device, group: dict) -> None:
        momentum = group["momentum"]
        directions = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            average = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
            directions.append(parameter.grad.lerp(average, momentum) if group["nesterov"] else average)
        stacked_NRC = torch.stack(directions)
        if device.type != "cpu":
            stacked_NRC = stacked_NRC.bfloat16()
        update_NRC = orthogonalise(stacked_NRC).to(parameters[0].dtype)
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(update_NRC.unbind(0)), alpha=-rate)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon over matrices and AdamW over the other groups, with one state and one list of groups.

    Both parts share this object's state and group dictionaries, so `state_dict` has torch's usual form and a rate
    that is set here is the rate that they use.
    """

    def __init__(self, matrices: list[dict], others: list[dict], spec: OptimiserSpec) -> None:
        muon = BatchedMuon(matrices, lr=spec.matrix_learning_rate, momentum=spec.momentum, weight_decay=0.0)
        self._parts = (muon, adamw(others, spec))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        begin = 0
        for part in self._parts:
            end = begin + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[begin:end], self.state
            begin = end

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure=None):
        """One update of both parts."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self._parts:
            part.step()
        return loss


def adamw(groups: list[dict], spec: OptimiserSpec) -> torch.optim.AdamW:
    """AdamW over `groups` in torch's fused form (0.2 ms instead of 1 ms for a tiny model)."""
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, fused=True)


class Described(Protocol):
    """A model that says what its parameters are, by name (`models.LanguageModel` does)."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def matrices(self) -> set[str]: ...

    def no_decay(self) -> set[str]: ...

    def lr_scale(self) -> dict[str, float]: ...


def build(model: Described, spec: OptimiserSpec) -> torch.optim.Optimizer:
    """The optimiser of `spec` over every trainable parameter of `model`, each exactly once."""
    matrices, decayed, spared = group_parameters(model)
    scale = model.lr_scale()

    def groups(named: dict[str, nn.Parameter], peak: float, decay: float) -> list[dict]:
        by_scale: dict[float, list[nn.Parameter]] = {}
        for name, parameter in named.items():
            by_scale.setdefault(scale.get(name, 1.0), []).append(parameter)
        return [{"params": members, "weight_decay": decay, "lr": peak * factor, "peak": peak * factor}
                for factor, members in by_scale.items()]

    spare = groups(spared, spec.learning_rate, 0.0)
    if spec.kind == "adamw":
        return adamw(groups(matrices | decayed, spec.learning_rate, spec.weight_decay) + spare, spec)
    if not matrices:
        raise SpecError("optimiser 'muon' found no weight matrix outside the embedding in this model; use 'adamw'")
    return MuonWithAdamW(groups(matrices, spec.matrix_learning_rate, 0.0),
                         groups(decayed, spec.learning_rate, spec.weight_decay) + spare, spec)


def group_parameters(model: Described) -> tuple[dict[str, nn.Parameter], ...]:
    """(matrices, decayed, spared), each {name: parameter} in the model's order; tied parameters appear once."""
    muon, undecayed = model.matrices(), model.no_decay()
    matrices, decayed, spared = {}, {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = spared if name in undecayed else matrices if name in muon else decayed
            group[name] = parameter
    return matrices, decayed, spared
