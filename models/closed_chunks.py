"""Mixers that read the keys nearby and summaries of closed chunks (long_short, eva): their state and their calls.

In mode non_causal the summaries are of the whole document, and nothing streams.

Letters: P cached tokens, G chunks, C tokens a chunk, R summaries a chunk, S slots of summaries. Chunks begin at the
document's first token; a row's summaries stand at its first columns, zeros behind them, so that the cache holds exactly
what the longest row needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.layout import Layout
from kernels.summary_window import Places, Rule, reach, summary_window, summary_window_step
from kernels.summary_window.near import check_rule
from kernels.taylor.features import without_autocast
from models.both_sides import pairs_both_sides, read_both_sides
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.mixers.sliding_window import last_tokens
from models.modes import abilities_in
from models.state import State
from models.whole_document import by_length

Tokens = dict[str, torch.Tensor]  # by name, (B, tokens, H, .)


class SummaryMixer(Mixer):
    """The state holds reach - 1 tokens of k and v, chunk - 1 of what else a summary is made of, and the summaries."""

    def __init__(self, config: MixerConfig, width: int, layer: int):
        super().__init__(config, width, layer)
        self.rule: Rule = config.rule
        if config.mode == "causal":
            check_rule(config.kind, self.rule)
        self.extension = max(1, config.window // 2) if config.extension is None else config.extension
        self.head_width = head_width(config.kind, width, config.heads)

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return abilities_in(config.mode, growth="linear")

    # --------------------------------------------------------------------------------------- what an author writes
    def project(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, Tokens]:
        """q_BLHK, and the tokens that the state keeps: k, v, and what else a summary is made of."""
        raise NotImplementedError

    def summarise(self, chunks: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (B, G·R, H, K) of whole chunks (B, G, C, H, .), in the dtype that the state keeps."""
        raise NotImplementedError

    def near(self, x_BNHK: torch.Tensor) -> torch.Tensor:
        """k or v as it is read when near."""
        return x_BNHK

    def places(self, k_BNHK: torch.Tensor, S: int) -> Places | None:
        """Position terms of rows whose near keys are k and which may have S slots."""
        return None

    def step_places(self, q_BHK, k_BNHK, S: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Position terms of one token: (near_BHO, far_BHS) of `summary_window_step`."""
        return None, None

    def others(self) -> dict[str, int]:
        """Last axes of the tokens beside k and v, by name."""
        return {}

    def summarise_all(self, q: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """mode non_causal: keys and values (B, H, S, K) of whole documents, from (B, H, N, .) in float32 or wider."""
        raise NotImplementedError

    def side_table(self) -> torch.Tensor | None:
        """mode non_causal: `table_HO` of read_both_sides."""
        return None

    # --------------------------------------------------------------------------------------------- what they share
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.config.heads, -1))

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, new = self.project(x_BLD, layout)
        if self.config.mode == "non_causal":
            return self._both_ways(q, new, layout), None
        later = state is not None and layout.offset_B is not None
        far_k, far_v = self._closed(new, layout, state if later else None)
        kept = {}
        if state is not None:
            far_k, far_v = (appended(state[name], far, layout, state, self.rule) for name, far in (
                ("far_k", far_k), ("far_v", far_v)))
            kept = {name: last_tokens(state[name], tokens, layout) for name, tokens in new.items()}
            kept |= {"far_k": far_k, "far_v": far_v}
        k, v = (self.near(torch.cat((state[name], new[name]), 1) if later else new[name]) for name in ("k", "v"))
        y = summary_window(q, k, v, far_k, far_v, rule=self.rule, places=self.places(k, far_k.shape[1]),
                           past_B=state.count_B if later else None)
        return self.out_proj(y.flatten(2)), None if state is None else state.advanced(layout.lengths_B, **kept)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, new = self.project(x_BD[:, None], layout)
        kept = {name: torch.cat((state[name], token), 1) for name, token in new.items()}
        k, v = self.near(kept["k"]), self.near(kept["v"])
        near, far = self.step_places(q[:, 0], k, state["far_k"].shape[1])
        y = summary_window_step(q[:, 0], k, v, state["far_k"], state["far_v"], rule=self.rule, past_B=state.count_B,
                                near_BHO=near, far_BHS=far)
        kept = {name: tokens[:, 1:].clone() for name, tokens in kept.items()}
        if closing(layout, state, self.rule.chunk)[-1]:
            for name, summary in zip(("far_k", "far_v"), self._closed(new, layout, state)):
                kept[name] = appended(state[name], summary, layout, state, self.rule)
        return self.out_proj(y.flatten(1)), state.advanced(layout.lengths_B, **kept)

    def _closed(self, new: Tokens, layout: Layout, state: State | None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.summarise({name: whole_chunks(None if state is None else state[name], tokens, layout, state,
                                                  self.rule.chunk) for name, tokens in new.items()})

    def _both_ways(self, q_BLHK: torch.Tensor, new: Tokens, layout: Layout) -> torch.Tensor:
        """Every block reads the tokens on both sides and summaries of its whole document. Rows of one length go together."""
        near = {"near_k": self.near(new["k"]), "near_v": self.near(new["v"])}
        tokens = {"q": q_BLHK, **new, **near}                             # near_v last: its shape is y's
        wide = self.sum_dtype(q_BLHK.dtype)

        def attend(*tokens_BHNK: torch.Tensor) -> torch.Tensor:
            found = dict(zip(tokens, tokens_BHNK))
            far_k, far_v = self.summarise_all(found["q"], found)
            return read_both_sides(found["q"], found["near_k"], found["near_v"], far_k, far_v, W=self.config.window,
                                   E=self.extension, table_HO=self.side_table())

        with without_autocast(q_BLHK.device):
            y_BHLK = by_length(attend, [t.to(wide).transpose(1, 2) for t in tokens.values()], layout)
        return self.out_proj(y_BHLK.transpose(1, 2).flatten(2).to(q_BLHK.dtype))

    def cost_both_ways(self, length: int, token: int, summaries: Callable[[int], int]) -> Cost:
        """mode non_causal: `token` FLOPs of a token's projections and its part in the `summaries(n)` of n tokens. A further
        token changes every output: its step is the whole forward again. There is no state."""
        flops = []
        for n in (length, length + 1):
            pairs = pairs_both_sides(n, self.config.window, self.extension) + n * summaries(n)
            flops.append(n * token + pairs * 4 * self.width)
        return Cost(self.parameter_count(), *flops, 0)

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        if self.config.mode == "non_causal":
            return super().init_state(B, dtype, device)                   # refused
        P, K = reach(self.rule) - 1, self.head_width
        shapes = {"k": (P, K), "v": (P, K), "far_k": (0, K), "far_v": (0, K)}
        shapes |= {name: (self.rule.chunk - 1, last) for name, last in self.others().items()}
        return self.new_state(B, dtype, device, **{
            name: torch.zeros(B, tokens, self.config.heads, last, dtype=dtype, device=device)
            for name, (tokens, last) in shapes.items()})

    def state_bytes(self, slots: int, dtype: torch.dtype) -> int:
        """Of one row with `slots` summaries."""
        others = (self.rule.chunk - 1) * self.config.heads * sum(self.others().values())
        return (2 * (reach(self.rule) - 1 + slots) * self.width + others) * dtype.itemsize + 8


def whole_chunks(past: torch.Tensor | None, new: torch.Tensor, layout: Layout, state: State | None, C: int) -> torch.Tensor:
    """(B, G, C, ...): each row's tokens from the start of its open chunk on, as many chunks as may close in this call.

    past (B, P, ...), newest last, with P >= C - 1, or None where nothing came before. Chunks that do not close hold
    anything finite.
    """
    if past is None:
        G = new.shape[1] // C
        return new[:, :G * C].unflatten(1, (G, C))
    P, (B, L) = past.shape[1], layout.shape
    G = (C - 1 + L) // C
    index = layout.cached(("open chunk", C, P), lambda: (P - state.count_B % C)[:, None] + torch.arange(
        G * C, device=new.device))
    both = torch.cat((past, new), 1)
    index = index.clamp(max=P + L - 1).view(B, G * C, *[1] * (new.dim() - 2))
    return both.gather(1, index.expand(-1, -1, *new.shape[2:])).unflatten(1, (G, C))


def closing(layout: Layout, state: State, C: int) -> tuple[torch.Tensor, torch.Tensor, int, bool]:
    """(chunks closed before, after, most after, whether any closes): tensors per row; the device is read once a call, for
    all layers of a model."""
    def count() -> tuple[torch.Tensor, torch.Tensor, int, bool]:
        before, after = state.count_B // C, (state.count_B + layout.lengths_B) // C
        most, grows = torch.stack((after.max(), (after - before).max())).tolist()
        return before, after, most, bool(grows)

    return layout.cached(("chunks closed", C), count)


def appended(cache_BS: torch.Tensor, new_BS: torch.Tensor, layout: Layout, state: State, rule: Rule) -> torch.Tensor:
    """A cache (B, S, ...) of its own memory with the summaries of chunks that close in this call behind each row's own."""
    (before, after, most, _), rank = closing(layout, state, rule.chunk), rule.rank
    width, S, N = most * rank, cache_BS.shape[1], new_BS.shape[1]
    column = torch.arange(width, device=cache_BS.device)
    old = column < before[:, None] * rank
    source = torch.where(old, column, S + column - before[:, None] * rank).clamp(max=max(S + N - 1, 0))
    filled = column < after[:, None] * rank
    both = torch.cat((cache_BS, new_BS.to(cache_BS.dtype)), 1)
    shape = (*source.shape, *[1] * (both.dim() - 2))
    return torch.where(filled.view(shape), both.gather(1, source.view(shape).expand(-1, -1, *both.shape[2:])), 0)
