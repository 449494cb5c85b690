"""Documents, the many ways to lay them out in a batch, and the one measure of agreement.

A document is a tensor (n, D). Laying documents out gives x_BLD, a Layout and, per document, the slots of its tokens,
so that results can be collected and compared with each document run alone.
"""

import math
from dataclasses import dataclass

import torch

from kernels.layout import Layout
from tests.contracts.cases import WIDTH, Case

T64, T32, T16 = 1e-10, 2e-5, 3e-2
POISONS = {"nan": math.nan, "inf": math.inf, "huge": 1e30}
SIDES = ("right", "left", "interior")


def error(got: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """max|a - b| / max|b| over everything at once, in float64."""
    a, b = (torch.cat([t.detach().double().flatten() for t in tensors]) for tensors in (got, expected))
    assert a.shape == b.shape
    if a.numel() == 0:
        return 0.0
    difference = (a - b).abs().max()
    assert not difference.isnan(), "NaN in a result"
    return float(difference / b.abs().max().clamp(min=1e-300)) if float(difference) else 0.0


def tolerance(dtype: torch.dtype, case: Case | None = None) -> float:
    """Of this dtype; for mixers that invert by iteration 1e-8 and 1e-3 (contract 6)."""
    iterative = case is not None and case.abilities.iterative
    return {torch.float64: 1e-8 if iterative else T64, torch.float32: 1e-3 if iterative else T32,
            torch.bfloat16: T16}[dtype]


def sizes(case: Case) -> list[int]:
    """Row lengths: empty, one, odd ones, and around the window and the chunk."""
    return sorted({0, 1, 5, 7, 9, 13, 2 * case.chunk + 1, case.window, case.window + 1})


def documents(lengths: list[int], dtype: torch.dtype = torch.float64, seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    return [(scale * torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)).to(dtype) for n in lengths]


@dataclass
class Batch:
    x_BLD: torch.Tensor
    layout: Layout
    slots: list[tuple[int, torch.Tensor]]

    def collect(self, y_BLD: torch.Tensor) -> list[torch.Tensor]:
        return [y_BLD[row, index] for row, index in self.slots]

    def spread(self, values: list[torch.Tensor], fill: float = 0.0) -> torch.Tensor:
        """Document tensors (n, ...) to (B, L, ...), pads filled."""
        out = values[0].new_full((*self.x_BLD.shape[:2], *values[0].shape[1:]), fill)
        for (row, index), value in zip(self.slots, values):
            out[row, index] = value
        return out


def place(docs: list[torch.Tensor], side: str, poison: float = 0.0, M: int | list[int] = 0, spare: int = 3) -> Batch:
    """One document a row, padded at `side`; the longest row has `spare` pads as well."""
    lengths = [len(doc) for doc in docs]
    L = max(lengths) + spare
    if side == "right":
        layout, starts = Layout.right_padded(lengths, L), [torch.arange(n) for n in lengths]
    elif side == "left":
        layout, starts = Layout.left_padded(lengths, L), [torch.arange(L - n, L) for n in lengths]
    else:
        generator = torch.Generator().manual_seed(L)
        starts = [torch.randperm(L, generator=generator)[:n].sort().values for n in lengths]
        real_BL = torch.zeros(len(docs), L, dtype=torch.bool)
        for row, index in enumerate(starts):
            real_BL[row, index] = True
        layout = Layout.from_mask(real_BL)
    if M:
        layout = layout.with_prefix(M)
    batch = Batch(docs[0].new_full((len(docs), L, *docs[0].shape[1:]), poison), layout, list(enumerate(starts)))
    batch.x_BLD = batch.spread(docs, poison)
    return batch


def dense(docs: list[torch.Tensor], M: int | list[int] = 0) -> Batch:
    """Documents of one length, without pads."""
    layout = Layout.dense(len(docs), len(docs[0]))
    return Batch(torch.stack(docs), layout.with_prefix(M) if M else layout,
                 [(row, torch.arange(len(doc))) for row, doc in enumerate(docs)])


def alone(doc: torch.Tensor, M: int = 0) -> Batch:
    return dense([doc], M)


def pack(rows: list[list[torch.Tensor]], prefixes: list[int], interior: bool = False, poison: float = 0.0) -> Batch:
    """Several documents a row; trailing pads, or pads anywhere. `prefixes` holds one M per document, row by row."""
    lengths_per_row = [[len(doc) for doc in row] for row in rows]
    L = max(map(sum, lengths_per_row)) + 4
    generator = torch.Generator().manual_seed(7)
    slots, real_BL = [], torch.zeros(len(rows), L, dtype=torch.bool)
    for row, lengths in enumerate(lengths_per_row):
        total = sum(lengths)
        index = torch.randperm(L, generator=generator)[:total].sort().values if interior else torch.arange(total)
        real_BL[row, index] = True
        slots += [(row, part) for part in index.split(lengths)]
    layout = Layout.from_mask(real_BL, lengths_per_row) if interior else Layout.packed(lengths_per_row, L)
    if any(prefixes):
        own = iter(prefixes)
        layout = layout.with_prefix([[next(own) for _ in row] or [0] for row in rows])
    docs = [doc for row in rows for doc in row]
    batch = Batch(docs[0].new_full((len(rows), L, WIDTH), poison), layout, slots)
    batch.x_BLD = batch.spread(docs, poison)
    return batch


@dataclass
class Run:
    """Outputs, input gradients (both per document) and the parameters' gradients of one forward and backward."""

    y: list[torch.Tensor]
    dx: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]
    y_BLD: torch.Tensor | None = None
    dx_BLD: torch.Tensor | None = None

    def error(self, expected: "Run") -> float:
        assert self.parameters.keys() == expected.parameters.keys()
        names = sorted(self.parameters)
        return max(
            error(self.y, expected.y),
            error(self.dx, expected.dx),
            error([self.parameters[n] for n in names], [expected.parameters[n] for n in names]) if names else 0.0,
        )


def cotangents(docs: list[torch.Tensor], seed: int = 5) -> list[torch.Tensor]:
    return [g.to(docs[0].dtype) for g in documents([len(doc) for doc in docs], seed=seed)]


def run(mixer: torch.nn.Module, batch: Batch, g: list[torch.Tensor]) -> Run:
    """Forward and backward through forward(); at pads the cotangent is 1, which must not arrive anywhere."""
    mixer.zero_grad(set_to_none=True)
    x_BLD = batch.x_BLD.clone().requires_grad_()
    y_BLD = mixer.forward(x_BLD, batch.layout)
    y_BLD.backward(batch.spread(g, 1.0))
    gradients = {name: p.grad.clone() for name, p in mixer.named_parameters() if p.grad is not None}
    return Run(batch.collect(y_BLD.detach()), batch.collect(x_BLD.grad), gradients, y_BLD.detach(), x_BLD.grad)


def run_alone(mixer: torch.nn.Module, docs: list[torch.Tensor], prefixes: list[int], g: list[torch.Tensor]) -> Run:
    """Every document by itself, the parameters' gradients summed."""
    total = Run([], [], {})
    for doc, M, cotangent in zip(docs, prefixes, g):
        if len(doc) == 0:
            total.y.append(doc)
            total.dx.append(doc)
            continue
        one = run(mixer, alone(doc, M), [cotangent])
        total.y += one.y
        total.dx += one.dx
        for name, gradient in one.parameters.items():
            total.parameters[name] = total.parameters.get(name, 0) + gradient
    return total


def compare_states(got, expected) -> float:
    """Disagreement of two states over all their tensors; counts and other integers must be equal."""
    a, b = got.tensors(), expected.tensors()
    assert a.keys() == b.keys()
    assert torch.equal(got.count_B, expected.count_B)
    ones, twos = [], []
    for name in a:
        one, two = a[name], b[name]
        if one.shape != two.shape:  # append caches may hold different spare columns
            assert one.dim() == two.dim() and len(one) == len(two), name
            common = tuple(slice(min(p, q)) for p, q in zip(one.shape, two.shape))
            one, two = one[common], two[common]
        if one.is_floating_point():
            ones.append(one)
            twos.append(two)
        else:
            assert torch.equal(one, two), name
    return error(ones, twos) if ones else 0.0


def same_states(got, expected) -> bool:
    """Bit for bit, NaN excluded."""
    a, b = got.tensors(), expected.tensors()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
