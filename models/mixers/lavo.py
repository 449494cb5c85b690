"""LAVO: a sliding window beside a memory along an orthogonal basis; a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from kernels.layout import Layout
from kernels.orthogonal_memory import MemoryState, compress, lavo, memory_step, orthogonal_memory, read_memory
from kernels.window import window
from models.basis import Mode as BasisMode
from models.basis import OrthogonalBasis, Scope
from models.initialise import Linear, draw_normal
from models.memory_writes import WriteGate, fading_memory
from models.mixer import Abilities, Cost, Mixer, MixerConfig, Mode
from models.mixers.attention import head_width
from models.mixers.sliding_window import last_tokens
from models.modes import abilities_in, mode_field, real_counts
from models.state import State


class Config(MixerConfig):
    """LAVO (arXiv 2312.11135). No code of it is public: what the paper leaves open is a setting here.

    Mode non_causal: a window of w keys to either side, and one memory of the whole document for all its tokens. Mode
    cross: the memory of a context, read as it is; no window, so that window, dissection and epe say nothing there.
    """

    kind: Literal["lavo"] = "lavo"
    mode: Mode = mode_field()
    heads: int = Field(12, ge=1, description="H; must divide the width (paper's language models: 12)")
    slots: int = Field(64, ge=1, description="r directions a head; at most the head width, or the width with basis_scope "
                                             "model (paper: 64 for language models, 32 LRA, 16 time series)")
    window: int = Field(64, ge=1, description="w keys a token sees, itself included [tokens] (paper: 16, 32, 64; LRA 256)")
    dissection: Literal["token", "window", "none"] = Field(
        "token", description="What the memory is the mean of. token: the window's output at every token so far. window: "
                             "what the tokens of closed windows see of their own window, both ways; nothing before the "
                             "first is closed. none: v")
    basis_scope: Scope = Field("head", description="head: a basis (r, head width) and r means for each head. model: one basis "
                                                   "(r, width), sliced by head, and r means for all")
    basis_mode: BasisMode = Field(
        "parametrized", description="parametrized: Gram-Schmidt of the parameter in float32, orthonormal at every step. fixed: "
                                    "as drawn, untrained. free: orthonormal at first, then as trained. qr: as free, made "
                                    "orthonormal again, in place, when it is first read after a step of the optimiser")
    epe: bool = Field(True, description="Embedded position encoding: a learned score for each offset within the window, "
                                        "instead of positions elsewhere")
    epe_per_head: bool = Field(False, description="A table for each head (paper: one)")
    epe_std: float = Field(0.0, ge=0, description="Deviation of the table at first (0: zeros; EVA's tables 0.02)")
    scale_local: float | None = Field(None, gt=0, description="Of q·k in the window; None = head width^-1/2")
    scale_global: float | Literal["inv_sqrt_d"] = Field(
        1.0, description="Of the slot scores: a number (paper: none, 1), or inv_sqrt_d = head width^-1/2")
    keep: float | None = Field(
        None, gt=0, lt=1, description="Ablation: a token weighs this much less in the mean with every token after it (an "
                                      "exponential average, divided by its weights' sum). None: all alike, as in the paper. "
                                      "Causal, not with dissection window")
    gated_write: bool = Field(False, description="Ablation: of what the memory compresses it takes sigmoid(w·x + b), w and b a "
                                                 "head's own and nearly open at first. The mean is still over all tokens")
    combine: Literal["mean"] = Field("mean", description="(window + memory) / 2, head by head, before out_proj")
    bias: bool = Field(True, description="Biases of the four projections (the paper's baseline: yes)")

    @model_validator(mode="after")
    def _averages_tokens(self) -> Config:
        if self.keep is not None and self.dissection == "window":
            raise ValueError("keep weighs tokens, dissection window adds whole windows up: take dissection token or none")
        if self.keep is not None and self.mode != "causal":
            raise ValueError(f"keep weighs tokens by their age, and mode {self.mode} has one memory for all: leave keep out")
        return self

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "token": cls(heads=2, slots=4, window=5, epe_std=1.0),
            "window": cls(heads=2, slots=3, window=4, dissection="window", epe_std=1.0, epe_per_head=True),
            "none": cls(heads=2, slots=8, window=3, dissection="none", epe=False, scale_global="inv_sqrt_d", bias=False),
            "model_wide": cls(heads=2, slots=12, window=3, basis_scope="model", basis_mode="fixed", scale_local=0.5),
            "model_window": cls(heads=4, slots=4, window=5, dissection="window", basis_scope="model", basis_mode="qr"),
            "fading": cls(heads=2, slots=4, window=3, keep=0.8),
            "fading_shared": cls(heads=4, slots=6, window=2, dissection="none", basis_scope="model", keep=0.9),
            "pairs": cls(heads=2, slots=1, window=2, dissection="window", basis_mode="free", scale_global=0.5),
            "gated": cls(heads=2, slots=4, window=4, gated_write=True),
            "gated_window": cls(heads=4, slots=4, window=3, dissection="window", gated_write=True, epe_std=1.0),
            "gated_fading": cls(heads=2, slots=5, window=3, dissection="none", gated_write=True, keep=0.9),
            "both_ways": cls(heads=2, slots=4, window=3, mode="non_causal", epe_std=1.0),
            "both_ways_window": cls(heads=2, slots=4, window=4, mode="non_causal", dissection="window", gated_write=True),
            "both_ways_shared": cls(heads=4, slots=6, window=2, mode="non_causal", dissection="none", basis_scope="model"),
            "cross": cls(heads=2, slots=6, mode="cross"),
            "cross_gated": cls(heads=4, slots=8, mode="cross", basis_scope="model", gated_write=True, bias=False),
        }


class LAVO(Mixer):
    """proj_q, proj_k, proj_v, window and memory, out_proj. The state: the memory's sum and the last w - 1 k, v (and q, with
    dissection window, whose open window is read again when it closes). A context's memory: the sum alone."""

    keep_init = frozenset({"basis.weight", "table", "gate.weight", "gate.bias"})
    no_decay = frozenset({"basis.weight", "table"})

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        cross = config.mode == "cross"
        self.proj_q = Linear(width, width, bias=config.bias)
        self.proj_k = None if cross else Linear(width, width, bias=config.bias)
        self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(2))
        self.basis = OrthogonalBasis(config.heads, config.slots, self.head_width, config.basis_scope, config.basis_mode)
        tables = config.heads if config.epe_per_head else 1
        self.table = nn.Parameter(torch.empty(tables, 2 * config.window - 1)) if config.epe and not cross else None
        self.gate = WriteGate(config.heads, self.head_width) if config.gated_write else None
        scale = config.scale_global
        self.scale_global = self.head_width**-0.5 if scale == "inv_sqrt_d" else scale
        self.cached = ("k", "v", "q") if config.dissection == "window" else ("k", "v")

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices N(0, 1/fan_in), an orthonormal basis, a table of zeros unless epe_std says otherwise, an open gate."""
        super().reset_parameters(generator)
        self.basis.reset_parameters(generator)
        if self.table is not None:
            draw_normal(self.table, self.config.epe_std, generator)
        if self.gate is not None:
            self.gate.reset_parameters(generator)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode, randomness="features" if config.basis_mode == "fixed" else "none")

    # ------------------------------------------------------------------------------------------------ one sequence
    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = self._project(x_BLD)
        basis = self._basis(x_BLD)
        fresh = state is None or layout.offset_B is None
        if self.config.keep is not None:
            y, memory = self._fading(q, k, v, basis, layout, None if fresh else state)
        elif not fresh and self.config.dissection == "window":
            y, memory = self._from_open_windows(q, k, v, basis, layout, state)
        elif self.config.mode == "causal" and self.gate is None:
            y, memory = self._at_once(q, k, v, basis, layout, state)
        else:
            y, memory = self._in_turn(q, k, v, basis, layout, None if fresh else state)
        if state is None:
            return self._output(y), None
        tokens = {"q": q, "k": k, "v": v}
        state = state.advanced(layout.lengths_B, sum=memory.sum_BHR, **{
            name: last_tokens(state[name], tokens[name], layout) for name in self.cached})
        return self._output(y), state

    def _at_once(self, q, k, v, basis, layout: Layout, state: State | None) -> tuple[torch.Tensor, MemoryState | None]:
        """The causal operation, which gives the memory what comes out of the window while it is at hand."""
        settings = {"window": self.config.window, "table": self.table, "dissection": self.config.dissection,
                    "shared": self.basis.shared, "scale_local": self.config.scale_local, "scale_global": self.scale_global}
        if state is None:
            return lavo(q, k, v, basis, **settings), None
        if layout.offset_B is None:
            return lavo(q, k, v, basis, lengths_B=layout.lengths_B, return_state=True, **settings)
        return lavo(q, k, v, basis, lengths_B=layout.lengths_B, state=MemoryState(state["sum"], state.count_B),
                    return_state=True, **self._past(state), **settings)

    def _in_turn(self, q, k, v, basis, layout: Layout, state: State | None) -> tuple[torch.Tensor, MemoryState]:
        """The window, the gate, the memory; of whole documents where not causal."""
        causal, w, dissection = self.config.mode == "causal", self.config.window, self.config.dissection
        lengths_B = real_counts(layout)
        near = self._window(q, k, v, reach="causal" if causal else "both", lengths_B=lengths_B, **self._past(state))
        own = dissection == "window"
        x = self._window(q, k, v, reach="own", lengths_B=lengths_B) if own else near if dissection == "token" else v
        far, memory = orthogonal_memory(
            q, self._gated(x), basis, causal=causal, closed=w if causal and own else None, lengths_B=lengths_B,
            context_B=None if causal else lengths_B, return_state=True,
            state=None if state is None else MemoryState(state["sum"], state.count_B), **self._memory())
        return (near + far) / 2, memory

    def _from_open_windows(self, q, k, v, basis, layout: Layout, state: State) -> tuple[torch.Tensor, MemoryState]:
        """Dissection window after some tokens: each row's open window comes again before the new ones."""
        w, open_B = self.config.window, state.count_B % self.config.window
        near = self._window(q, k, v, **self._past(state))
        q, k, v = (rejoined(state[name], new, open_B) for name, new in (("q", q), ("k", k), ("v", v)))
        lengths_B = open_B + layout.lengths_B
        far, memory = orthogonal_memory(
            q, self._gated(self._window(q, k, v, reach="own", lengths_B=lengths_B)), basis, closed=w, lengths_B=lengths_B,
            state=MemoryState(state["sum"], state.count_B - open_B), return_state=True, **self._memory())
        slot_BL = open_B[:, None] + torch.arange(near.shape[1], device=near.device)
        far = far.gather(1, slot_BL[:, :, None, None].expand_as(near))
        return (near + far) / 2, memory

    def _fading(self, q, k, v, basis, layout: Layout, state: State | None) -> tuple[torch.Tensor, MemoryState]:
        """An exponential average instead of the mean."""
        near = self._window(q, k, v, **self._past(state))
        far, sums = fading_memory(
            q, self._gated(near if self.config.dissection == "token" else v), basis, None if state is None else state["sum"],
            layout, keep=self.config.keep, **self._memory())
        return (near + far) / 2, MemoryState(sums, layout.lengths_B)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        if self.config.keep is not None:
            return super().mix_step(x_BD, layout, state)
        w, tokens = self.config.window, dict(zip("qkv", self._project(x_BD[:, None])))
        basis, q = self._basis(x_BD), tokens["q"][:, 0]
        near = self._window(**tokens, **self._past(state))
        whole = {name: torch.cat((state[name], tokens[name]), 1) for name in self.cached}  # the last w tokens
        if self.config.dissection == "window":
            open_B = state.count_B % w
            far = read_memory(tokens["q"], basis, MemoryState(state["sum"], state.count_B - open_B), scale=self.scale_global)
            far, memory_sum = far[:, 0], self._closed(whole, basis, state["sum"], open_B == w - 1)
        else:
            x = near[:, 0] if self.config.dissection == "token" else tokens["v"][:, 0]
            far, memory = memory_step(q, self._gated(x), basis, MemoryState(state["sum"], state.count_B), **self._memory())
            memory_sum = memory.sum_BHR
        rings = {name: last[:, 1:].clone() for name, last in whole.items()}
        return self._output((near[:, 0] + far) / 2), state.advanced(layout.lengths_B, sum=memory_sum, **rings)

    def _closed(self, whole: dict[str, torch.Tensor], basis, sum_BhR, closes_B) -> torch.Tensor:
        """The sum after a token; rows whose window it closed have that window in it. `whole` is their last w tokens."""
        if closes_B.device.type == "cpu" and not closes_B.any():
            return sum_BhR
        features = compress(self._gated(self._window(**whole, reach="own")), basis, shared=self.basis.shared).sum_BHR
        return torch.where(closes_B[:, None, None], sum_BhR + features, sum_BhR)

    # --------------------------------------------------------------------------------------------------- a context
    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        v = self.proj_v(context_BND).unflatten(-1, (self.config.heads, -1))
        memory = compress(self._gated(v), self._basis(context_BND), lengths_B=real_counts(layout), shared=self.basis.shared)
        return self.new_state(len(v), context_BND.dtype, v.device, sum=memory.sum_BHR).advanced(layout.lengths_B)

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        q = self.proj_q(x_BLD).unflatten(-1, (self.config.heads, -1))
        return self._output(read_memory(q, self._basis(x_BLD), MemoryState(memory["sum"], memory.count_B),
                                        scale=self.scale_global))

    # ------------------------------------------------------------------------------------------------------- pieces
    def _project(self, x_BLD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(projection(x_BLD).unflatten(-1, (self.config.heads, -1))
                     for projection in (self.proj_q, self.proj_k, self.proj_v))

    def _basis(self, x: torch.Tensor) -> torch.Tensor:
        return self.basis(self.sum_dtype(x.dtype))

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.gate is None else self.gate(x)

    def _window(self, q, k, v, **settings: Any) -> torch.Tensor:
        return window(q, k, v, window=self.config.window, table=self.table, scale=self.config.scale_local, **settings)

    def _memory(self) -> dict[str, Any]:
        return {"shared": self.basis.shared, "scale": self.scale_global}

    @staticmethod
    def _past(state: State | None) -> dict[str, torch.Tensor]:
        return {} if state is None else {"past_k": state["k"], "past_v": state["v"], "past_B": state.count_B}

    def _output(self, y: torch.Tensor) -> torch.Tensor:
        return self.out_proj(y.flatten(-2))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        ring = (B, self.config.window - 1, self.config.heads, self.head_width)
        sums = torch.zeros(B, self._means() // self.config.slots, self.config.slots, dtype=self.sum_dtype(dtype), device=device)
        return self.new_state(B, dtype, device, sum=sums,
                              **{name: torch.zeros(ring, dtype=dtype, device=device) for name in self.cached})

    # --------------------------------------------------------------------------------------------------------- cost
    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        memory = self._means() * self.sum_dtype(dtype).itemsize + 8
        ring = len(self.cached) * (self.config.window - 1) * self.width * dtype.itemsize
        if self.config.mode == "cross":
            read = 4 * self.width**2 + 4 * self.config.slots * self.width
            write = 2 * self.width**2 + 2 * self.config.slots * self.width + self._gate_flops()
            return Cost(self.parameter_count(), length * (read + write), read, memory)
        return Cost(parameters=self.parameter_count(), flops=self._flops(length),
                    step_flops=self._flops(length + 1) - self._flops(length),
                    state_bytes=memory + ring if self.config.mode == "causal" else 0)

    def _means(self) -> int:
        return self.config.slots * (1 if self.basis.shared else self.config.heads)

    def _gate_flops(self) -> int:
        return 0 if self.gate is None else 2 * self.width

    def _flops(self, n: int) -> int:
        """Projections, pairs within the window, B x, q Bᵀ and the read; closed windows once more, both ways."""
        w, full, causal = self.config.window, min(n, self.config.window), self.config.mode == "causal"
        pairs = full * (full + 1) // 2 + (n - full) * w
        pairs = pairs if causal else 2 * pairs - n
        if self.config.dissection == "window":
            pairs += n // w * w * w + (0 if causal else (n % w) ** 2)
        return n * (8 * self.width**2 + 6 * self.config.slots * self.width + self._gate_flops()) + 4 * self.width * pairs


def rejoined(past_BPHK: torch.Tensor, new_BLHK: torch.Tensor, open_B: torch.Tensor) -> torch.Tensor:
    """(B, P + L, H, K): the last `open_B` tokens of each row's past, its new ones, then whatever is finite."""
    both = torch.cat((past_BPHK, new_BLHK), 1)
    index = past_BPHK.shape[1] - open_B[:, None] + torch.arange(both.shape[1], device=both.device)
    return both.gather(1, index.clamp(max=both.shape[1] - 1)[:, :, None, None].expand_as(both))
