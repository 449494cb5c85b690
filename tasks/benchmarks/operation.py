"""An operation as the benchmark sees it: inputs, implementations side by side, and a truth that a long row can afford.

Every implementation gets the same drawn numbers. Its layout is arranged before the clock starts; ours read the public
layout [B, L, H, ·] as it is. The truth up to `NAIVE_TOKENS` tokens is the naive form in float64, all positions; beyond
it is a written-out formula in float64 at sampled positions, trusted because `prove` finds it equal to the naive form on
a short row in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from tasks.benchmarks.machine import installed
from tasks.benchmarks.rows import Red

Inputs = dict[str, torch.Tensor]
Form = Callable[[Inputs], torch.Tensor]

NAIVE_TOKENS = 512
SAMPLED = 64          # positions
ROWS = 4              # of a batch
PROOF_TOKENS, PROOF_TOLERANCE = 130, 1e-9
# largest difference over the largest value that still counts as right, by dtype of the inputs
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Setting:
    """One point of a sweep."""

    n: int
    batch: int = 1
    heads: int = 8
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    padded: bool = True        # our operations get lengths_B, and the last slot of each row is a pad

    @property
    def real(self) -> int:
        """Real tokens of each row of our operations."""
        return self.n - 1 if self.padded and self.n > 1 else self.n

    def generator(self, stream: int = 0) -> torch.Generator:
        """A stream of numbers on the device: drawing long rows elsewhere takes longer than reading them."""
        seed = (self.seed * 1_000_003 + self.n) * 4099 + self.batch * 64 + self.heads + stream * 7919
        return torch.Generator(self.device).manual_seed(seed)

    def draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        """Normal numbers, a row of the batch first."""
        return self.weight(generator, self.batch, *shape)

    def weight(self, generator: torch.Generator, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers that all rows share."""
        return torch.randn(*shape, generator=generator, device=self.device, dtype=dtype or self.dtype)

    def lengths(self) -> dict[str, torch.Tensor]:
        """{"lengths_B"} where padding is on."""
        return {"lengths_B": torch.full((self.batch,), self.real, device=self.device)} if self.padded else {}


@dataclass(frozen=True)
class Count:
    """Work of one call by formula: a multiply-add counts 2; bytes are inputs read once and outputs written once."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation."""

    name: str                                                  # ours: the backend; a peer: package.function
    call: Form                                                 # what is timed
    ours: bool = True
    arrange: Callable[[Inputs], Inputs] = dict                 # into its own layout, before the clock starts
    restore: Callable[[torch.Tensor], torch.Tensor] = lambda y: y   # from its layout to the public one, and back
    needs: tuple[str, ...] = ()                                # modules that must be importable
    devices: tuple[str, ...] = ("cpu", "cuda")
    takes: Callable[[Setting], bool] = lambda setting: True
    note: str | None = None                                    # what it does differently

    def runs(self, setting: Setting) -> bool:
        """Whether it is here and takes the setting; one that does not is absent from the results."""
        return (setting.device in self.devices and all(installed(module) for module in self.needs)
                and self.takes(setting))


@dataclass(frozen=True)
class Step:
    """One decode step against a state as a context of `n` tokens leaves it.

    `prepare(setting)` gives (state and inputs, bytes of the state); `call` takes a step, `truth` the same in float64.
    """

    prepare: Callable[[Setting], tuple[dict[str, object], int]]
    call: Callable[[dict[str, object]], torch.Tensor]
    truth: Callable[[dict[str, object]], torch.Tensor]
    backend: str = "step"
    truth_name: str = "naive form, float64, one token"


@dataclass(frozen=True)
class Truth:
    """What a result must be at some rows and positions."""

    rows: torch.Tensor
    at: torch.Tensor
    y: torch.Tensor            # float64 (rows, positions, ...)
    name: str
    shape: tuple[int, ...]     # of the whole result, (B, L, ...)

    def of(self, y: torch.Tensor) -> torch.Tensor:
        """The part of a result that is checked. Red for a result of another shape."""
        if tuple(y.shape) != self.shape:
            raise Red(f"a result of shape {tuple(y.shape)}, expected {self.shape}")
        return y[self.rows][:, self.at]


@dataclass(frozen=True)
class Operation:
    """See the module's docstring."""

    name: str
    about: str
    draw: Callable[[Setting], Inputs]
    implementations: tuple[Implementation, ...]
    formula: Callable[[Inputs, torch.Tensor], torch.Tensor]     # float64 (B, S, H, V) at positions S
    count: Callable[[Setting], Count]
    naive: Form | None = None                                   # float64, token by token, all positions
    leaves: tuple[str, ...] = ("q", "k", "v")                   # inputs that get gradients
    shared: tuple[str, ...] = ()                                # inputs without a batch dimension
    needs: tuple[str, ...] = ()
    step: Step | None = None
    whole: bool = False                                         # a whole mixer: no ratio to attention's core alone
    stretch: int = 1                                            # tokens that it reads for each of a row
    _proof: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def here(self) -> bool:
        """Whether the kernels it is made of are part of this build."""
        return all(installed(module) for module in self.needs)

    def running(self, setting: Setting, peers: bool) -> list[Implementation]:
        """Implementations that take the setting, ours first."""
        return [one for one in self.implementations if (peers or one.ours) and one.runs(setting)]

    def prove(self) -> float:
        """Largest difference of the formula from the naive form on a short padded row, both float64; once a process."""
        if "difference" not in self._proof:
            difference = 0.0
            if self.naive is not None:
                setting = Setting(PROOF_TOKENS, batch=2, heads=2, dtype=torch.float64)
                inputs = self.draw(setting)
                at = torch.arange(setting.real)
                wanted = self.naive(inputs)[:, :setting.real]
                difference = float((self.formula(inputs, at) - wanted).abs().max() / wanted.abs().max())
            self._proof["difference"] = difference
        return self._proof["difference"]

    def truth(self, exact: Inputs, setting: Setting) -> Truth:
        """The right result for inputs in float64, at some rows and positions."""
        setting = replace(setting, n=setting.n * self.stretch)
        rows = torch.linspace(0, setting.batch - 1, min(ROWS, setting.batch)).long().unique()
        whole = self.naive is not None and setting.n <= NAIVE_TOKENS
        at = torch.arange(setting.real, device=setting.device) if whole else positions(setting)
        found = []
        for row in rows.tolist():      # one row at a time, so that float64 scores fit
            own = {name: x if name in self.shared else x[row:row + 1] for name, x in exact.items()}
            found.append(self.naive(own)[:, :setting.real] if whole else self.formula(own, at))
        where = "every position" if whole else f"{len(at)} positions"
        where += f" of {len(rows)} rows" if setting.batch > 1 else ""
        y = torch.cat(found)
        return Truth(rows.to(setting.device), at, y, f"{'naive form' if whole else 'formula'}, float64, {where}",
                     (setting.batch, setting.n, *y.shape[2:]))


def positions(setting: Setting) -> torch.Tensor:
    """Positions at which a long row is checked: evenly spread, the first and the last real token, around a chunk's end."""
    spread = torch.linspace(0, setting.real - 1, min(SAMPLED, setting.real)).long()
    edges = torch.tensor([p for p in (63, 64, 127, 128, 255, 256) if p < setting.real], dtype=torch.int64)
    return torch.cat((spread, edges)).unique().to(setting.device)


def doubled(inputs: Inputs) -> Inputs:
    """The same numbers in float64."""
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
