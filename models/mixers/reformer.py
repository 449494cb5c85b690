"""Reformer (Kitaev et al. 2020), both ways: tokens attend inside buckets of a random hash, queries and keys being one.

In each round tokens are sorted by bucket, by place inside it; a chunk of the sorted row reads itself and the chunk
before (the first one that of the last round, as released). A token reads itself only where it sees nobody else. Rounds
are joined by their sums of weights. Key = query over its length; no 1 / sqrt(K).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from kernels.errors import ConfigError
from models.initialise import draw_normal
from models.mixer import Abilities, MixerConfig
from models.whole_document import WholeDocumentConfig, WholeDocumentMixer

UNSEEN, ITSELF = -1e9, -1e5  # scores of a key that must not, and of one that had better not be read (released)


class Config(WholeDocumentConfig):
    """Defaults: LRA's two rounds, transformers' chunk. Rotations are drawn once, with the parameters.

    transformers splits the hash in two factors where there are many buckets, and draws rotations at each call: not offered.
    """

    why_not_causal: ClassVar[str] = ("sorting by bucket lets later tokens decide which earlier ones share a chunk, even "
                                     "where the published mask hides the later ones themselves")
    kind: Literal["reformer"] = "reformer"
    bias: bool = Field(False, description="Of the projections (released: none)")
    chunk: int = Field(64, ge=1, description="C; a document of no more gets exact attention [tokens]")
    hashes: int = Field(2, ge=1, description="Rounds (LRA: 2)")
    buckets: int = Field(64, ge=2, description="Most buckets, even; n tokens get 2 n // C, rounded down to a power of 2")

    @model_validator(mode="after")
    def _even(self) -> Config:
        if self.buckets % 2:
            raise ConfigError(f"reformer: buckets {self.buckets} is odd, but a rotation gives them in opposite pairs; give an "
                              "even number")
        return self

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        return {"two_rounds": cls(heads=2, chunk=4, buckets=8),
                "one_round": cls(heads=4, chunk=3, hashes=1, buckets=4, bias=True)}


class Reformer(WholeDocumentMixer):
    """proj_qk, proj_v, hash, attention between chunks, out_proj. Buffer `rotations_HKSR`, R = buckets / 2."""

    exact = True
    projected = ("proj_qk", "proj_v")

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        shape = config.heads, self.head_width, config.hashes, config.buckets // 2
        self.register_buffer("rotations_HKSR", torch.empty(shape))

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return Abilities(causal=False, non_causal=True, streaming=False, randomness="features")

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; rotations N(0, 1)."""
        super().reset_parameters(generator)
        draw_normal(self.rotations_HKSR, 1.0, generator)

    def attend(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        N, C = q.shape[2], self.config.chunk
        k = q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.head_width**-0.5
        if N <= C:
            place = torch.arange(N, device=q.device)
            return self._read(q, k, v, place, place, N)[0]
        order = self.hashed(q).argsort(stable=True, dim=-1)
        own = F.pad(order, (0, -N % C), value=N).unflatten(-1, (-1, C)).flatten(2, 3)     # (B, H, rounds·chunks, C)
        seen = torch.cat((own.roll(1, 2), own), -1)
        y, weight = self._read(taken(q, own), taken(k, seen), taken(v, seen), own, seen, N)
        undo = order.argsort(-1)
        y, weight = (t.unflatten(2, (self.config.hashes, -1)).flatten(3, 4)[:, :, :, :N] for t in (y, weight))
        y = y.gather(3, undo[..., None].expand(-1, -1, -1, -1, y.shape[-1]))
        return (weight.gather(3, undo).softmax(2)[..., None] * y).sum(2)

    @torch.no_grad()
    def hashed(self, q_BHNK: torch.Tensor) -> torch.Tensor:
        """(B, H, S, N) int64: the bucket of every token in each of S rounds."""
        half = self.bucket_count(q_BHNK.shape[2]) // 2
        turned = torch.einsum("bhnk,hksr->bhsnr", q_BHNK, self.rotations_HKSR[..., :half].to(q_BHNK.dtype))
        return torch.cat((turned, -turned), -1).argmax(-1)

    def bucket_count(self, N: int) -> int:
        """Of a document of N tokens, more than a chunk."""
        return min(self.config.buckets, 2 ** ((2 * (N // self.config.chunk)).bit_length() - 1))

    def _read(self, q, k, v, own, seen, N: int) -> tuple[torch.Tensor, torch.Tensor]:
        """y (..., K) and the logarithm of the sum of weights (...) of queries at `own`, reading keys at `seen`."""
        scores = torch.where(self.hidden(own[..., None], seen[..., None, :], N), UNSEEN, q @ k.mT)
        scores = torch.where(own[..., None] == seen[..., None, :], ITSELF, scores)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    def hidden(self, own: torch.Tensor, seen: torch.Tensor, N: int) -> torch.Tensor:
        """Pairs of places of which the second must not be read: N stands for no token."""
        return seen == N

    def flops(self, length: int) -> int:
        D, C, S = self.width, self.config.chunk, self.config.hashes
        if length <= C:
            return length * (6 * D * D + 4 * length * D)
        return length * (6 * D * D + S * (self.bucket_count(length) * D + 8 * C * D))


def taken(x_BHNK: torch.Tensor, place_BHGC: torch.Tensor) -> torch.Tensor:
    """(B, H, G, C, K): tokens by their places; zeros at place N."""
    index = place_BHGC.flatten(2)[..., None].expand(-1, -1, -1, x_BHNK.shape[-1])
    return F.pad(x_BHNK, (0, 0, 0, 1)).gather(2, index).unflatten(2, place_BHGC.shape[2:])
