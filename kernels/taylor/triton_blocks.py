"""The feature layout inside the Triton kernels, and the way to and from `TaylorState`.

Vectors are cut into blocks of 8 features. A group is the outer product of two blocks a <= b, 64 features: a matrix unit
takes it whole. Nothing is scaled, so that the sums of keys, of queries (backward) and of encoder keys are one kernel:

    rows 0..KP-1: x;  row KP: 1;  then for each pair a <= b row-major: x_a (outer) x_b

The reader puts the factors in: scale on x, scale^2 / 2 on every group and twice that where a < b, as the pair (b, a) is
left out. F of a head: 209 for K = 16, 81 for K = 8 (`TaylorState`: 153 and 45).

Both maps are linear with one entry a row, and each is the other's transpose up to the reader's factors: `to_blocks`
takes a state, or the gradient of a final state; `from_blocks` gives the final state, or the gradient of an initial one.
"""

from __future__ import annotations

import functools

import torch

from kernels.gradients import outside_inference

BLOCK = 8
GROUP = BLOCK * BLOCK


def key_width(K: int) -> int:
    """KP: K rounded up to a width that a matrix unit takes."""
    return 16 if K <= 16 else 32


def value_width(V: int) -> int:
    """VP: V rounded up to a power of two of at least 16."""
    return max(16, 1 << (V - 1).bit_length())


def block_count(K: int) -> int:
    return -(-K // BLOCK)


def group_count(K: int) -> int:
    return block_count(K) * (block_count(K) + 1) // 2


def row_count(K: int) -> int:
    """F: rows of the sums of one head."""
    return key_width(K) + 1 + group_count(K) * GROUP


@functools.lru_cache(maxsize=64)
@outside_inference
def tables(K: int, scale: float, device: torch.device) -> tuple[torch.Tensor, ...]:
    """(source_R, factor_R, pick_F, weight_F): row r is factor[r] · state[source[r]], feature f weight[f] · row[pick[f]]."""
    KP, blocks = key_width(K), block_count(K)
    position, f = {}, 1 + K
    for i in range(K):
        for j in range(i, K):
            position[i, j] = f
            f += 1
    source, factor = [0] * row_count(K), [0.0] * row_count(K)
    pick, weight = [0] * f, [0.0] * f
    for i in range(K):
        source[i], factor[i] = 1 + i, scale**-0.5
        pick[1 + i], weight[1 + i] = i, scale**0.5
    factor[KP], pick[0], weight[0] = 1.0, KP, 1.0
    pairs = [(a, b) for a in range(blocks) for b in range(a, blocks)]
    for group, (a, b) in enumerate(pairs):
        for inner in range(GROUP):
            i, j = a * BLOCK + inner // BLOCK, b * BLOCK + inner % BLOCK
            if i >= K or j >= K:
                continue
            row, f = KP + 1 + group * GROUP + inner, position[min(i, j), max(i, j)]
            source[row], factor[row] = f, (2**0.5 if i == j else 1.0) / scale
            if i <= j:
                pick[f], weight[f] = row, scale * (2**-0.5 if i == j else 1.0)
    single = functools.partial(torch.tensor, dtype=torch.float32, device=device)
    return torch.tensor(source, device=device), single(factor), torch.tensor(pick, device=device), single(weight)


def to_blocks(kv_BHFV: torch.Tensor, z_BHF: torch.Tensor, K: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(G, R, VP) and (G, R) float32 of a state, G = B·H."""
    source, factor, _, _ = tables(K, scale, z_BHF.device)
    V = kv_BHFV.shape[-1]
    shape = (z_BHF.shape[0] * z_BHF.shape[1], len(source), value_width(V))
    kv = torch.zeros(shape, dtype=torch.float32, device=z_BHF.device)
    kv[..., :V] = kv_BHFV.flatten(0, 1).index_select(1, source) * factor[:, None]
    return kv, z_BHF.float().flatten(0, 1).index_select(1, source) * factor


def from_blocks(kv_GRV: torch.Tensor, z_GR: torch.Tensor, sizes: tuple[int, int, int, int],
                scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, H, F, V) and (B, H, F) of block sums; sizes are (B, H, K, V)."""
    B, H, K, V = sizes
    _, _, pick, weight = tables(K, scale, z_GR.device)
    kv = kv_GRV.index_select(1, pick)[..., :V] * weight[:, None]
    return kv.view(B, H, len(pick), V), (z_GR.index_select(1, pick) * weight).view(B, H, len(pick))
