"""Losses of long texts in pieces: the state goes from piece to piece, and nothing else is kept.

Letters: B rows, N targets of each (a row holds N+1 tokens), P slots of a piece, E vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.perplexity_models import LOGITS, cross_entropy, device_of, target_losses
from tasks.specs import ExtrapolationSpec


@dataclass
class Reading:
    """How a model reads rows, and what its state came to [bytes a row], once it has.

    limit, reason  the longest row it can read, None = any, and why no longer one
    """

    model: Any
    piece_tokens: int
    limit: int | None
    reason: str
    state_bytes: int | None = None

    @classmethod
    def of(cls, model: Any, spec: ExtrapolationSpec) -> Reading:
        able, found = model.able, []
        if able.max_length is not None:
            found.append((able.max_length, f"its positions end at {able.max_length}"))
        if spec.growing_limit is not None and (able.growth == "linear" or not able.streaming):
            why = "its state grows with the text" if able.streaming else "it reads a text only as a whole"
            found.append((spec.growing_limit, f"{why}, and growing_limit is {spec.growing_limit}"))
        limit, reason = min(found, default=(None, ""))
        return cls(model, spec.piece_tokens, limit, reason)

    def cannot(self, length: int) -> str | None:
        """Why a row of that many tokens is not read, None if it is."""
        return None if self.limit is None or length <= self.limit else self.reason

    @property
    def note(self) -> str:
        """How it is read, for people."""
        able = self.model.able
        kind = {"constant": "a state of constant size", "log": "a state that grows with the logarithm",
                "linear": "the whole cache"}[able.growth]
        how = f"in pieces, with {kind}" if able.streaming else "in one forward"
        return how + ("; causally, without a prefix" if able.prefix else "")

    def losses(self, ids_BN: np.ndarray) -> Iterator[np.ndarray]:
        """float64 [B, P] of the targets [nats], piece after piece: N in all."""
        return self._in_pieces(ids_BN) if self.model.able.streaming else self._at_once(ids_BN)

    def _in_pieces(self, ids_BN: np.ndarray) -> Iterator[np.ndarray]:
        import torch

        from models import Layout

        B, device, state = len(ids_BN), device_of(self.model), None
        slots = max(1, min(self.piece_tokens // B, LOGITS // (B * self.model.config.table_rows)))
        for first in range(0, ids_BN.shape[1] - 1, slots):
            piece_BP = torch.from_numpy(np.ascontiguousarray(ids_BN[:, first:first + slots + 1])).to(device)
            inputs_BP, layout = piece_BP[:, :-1], Layout.dense(B, piece_BP.shape[1] - 1, device=device)
            with torch.no_grad():
                logits_BPE, state = (self.model.prefill(inputs_BP, layout, all_logits=True) if state is None else
                                     self.model.extend(inputs_BP, layout, state, all_logits=True))
                nll = cross_entropy(logits_BPE.flatten(0, 1), piece_BP[:, 1:].flatten())
            del logits_BPE
            yield nll.double().cpu().numpy().reshape(B, -1)
        self.state_bytes = state.nbytes // B

    def _at_once(self, ids_BN: np.ndarray) -> Iterator[np.ndarray]:
        import torch

        from models import Layout

        ids = torch.from_numpy(np.ascontiguousarray(ids_BN)).to(device_of(self.model))
        with torch.no_grad():
            x_SD = self.model.hidden(ids[:, :-1], Layout.dense(len(ids), ids.shape[1] - 1, device=ids.device)).flatten(0, 1)
            nll = target_losses(self.model, x_SD, ids[:, 1:].flatten())
        yield nll.double().cpu().numpy().reshape(len(ids), -1)
