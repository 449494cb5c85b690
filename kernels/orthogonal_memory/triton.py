"""The memory on GPUs: sums of blocks in torch, every token's read in one parallel kernel, with the window's if wished.

x reaches the sums as block totals, L / C vectors a head that meet the basis once (LAVO's mean is linear): a small product
and a cumulative sum. The backward runs the torch form over the same inputs.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.compile import Variant
from kernels.orthogonal_memory.triton_kernels import memory_forward
from kernels.triton_mode import capability, operand_type
from kernels.window.triton import VECTOR, padded, rows


def config(target: int | str, single: bool, wide: bool, window: bool) -> dict[str, int]:
    """Tokens a program, warps and stages, for capability 80, 90, 100 or "gfx942".

    Args:
        single: float32 operands. wide: more than 64 slots or numbers a head. window: the fused form.
    """
    if single:
        return {"C": 16 if wide else 32, "num_warps": 8, "num_stages": 1}
    if target == 80:
        return {"C": 32, "num_warps": 8 if wide else 4, "num_stages": 1}
    return {"C": 64, "num_warps": 8 if wide or window else 4, "num_stages": 1}


def settings(q_BLHK: torch.Tensor, basis_HRK: torch.Tensor, window: bool) -> dict[str, int]:
    wide = max(q_BLHK.shape[-1], basis_HRK.shape[1]) > 64
    return config(capability(q_BLHK.device), q_BLHK.dtype == torch.float32, wide, window)


def block_sums(x_BLHK: torch.Tensor, basis_HRK: torch.Tensor, sum_BHR: torch.Tensor, C: int) -> torch.Tensor:
    """(B, H, blocks, R) float32: sums of B x before each block of C tokens, a state's included."""
    blocks = triton.cdiv(x_BLHK.shape[1], C)
    totals = x_BLHK[:, : (blocks - 1) * C].unflatten(1, (blocks - 1, C)).sum(2, dtype=torch.float32)
    features = torch.einsum("bnhk,hrk->bhnr", totals, basis_HRK.float())
    return torch.cat((sum_BHR.unsqueeze(2), sum_BHR.unsqueeze(2) + features.cumsum(2)), 2)


def last_sums(x_BLHK, basis_HRK, before_BHNR, lengths_B, C: int) -> torch.Tensor:
    """(B, H, R): sums after each row's last real token, from those before its last block and that block's tokens."""
    B, L, H, K = x_BLHK.shape
    length_B = torch.full((B,), L, device=x_BLHK.device) if lengths_B is None else lengths_B
    block_B = (length_B // C).clamp(max=before_BHNR.shape[2] - 1)
    slot_BC = block_B[:, None] * C + torch.arange(C, device=x_BLHK.device)
    tail = x_BLHK.gather(1, slot_BC.clamp(max=L - 1)[..., None, None].expand(-1, -1, H, K))
    tail = (tail * (slot_BC < length_B[:, None])[..., None, None]).sum(1, dtype=torch.float32)
    before = before_BHNR.gather(2, block_B.view(B, 1, 1, 1).expand(-1, H, 1, before_BHNR.shape[3])).squeeze(2)
    return before + torch.einsum("bhk,hrk->bhr", tail, basis_HRK.float())


def read_tokens(
    q_BLHK, x_BNHK, basis_HRK, before_BHNR, count_B, *, running: bool, group: int = 1, scale: float,
    k_BNHK=None, window: int = 1, table=None, missing_B=None, scale_local: float = 1.0,
) -> torch.Tensor:
    """y_BLHK of the kernel; x holds N - L tokens before the queries' own. With k: the mean with the window's output."""
    q, x = rows(q_BLHK), rows(x_BNHK)
    k = x if k_BNHK is None else rows(k_BNHK)
    (B, L, H, K), N, R = q.shape, x.shape[1], basis_HRK.shape[1]
    log2e = math.log2(math.e)
    basis, before = basis_HRK.float().contiguous(), before_BHNR.float().contiguous()
    none = count_B.int() if missing_B is None else missing_B
    terms = before if table is None else (table.float() * log2e).contiguous()
    y = torch.empty(B, L, H, K, dtype=q.dtype, device=q.device)
    strides = [stride for tensor in (q, k, x) for stride in tensor.stride()[:3]]
    step = VECTOR if all(stride % VECTOR == 0 for stride in strides) else 1
    chosen = settings(q, basis_HRK, k_BNHK is not None)
    memory_forward[(triton.cdiv(L, chosen["C"]), B * H)](
        q, k, x, basis, before, count_B.int(), terms, y, none, *(stride // step for stride in strides),
        L, N - L, N, H, window, before.shape[2], group, scale * log2e, scale_local * log2e,
        RUNNING=running, WINDOW=k_BNHK is not None, TABLE=0 if table is None else 1 if table.shape[0] == 1 else 2,
        PAST=missing_B is not None, STEP=step, R=R, K=K, DR=padded(R), D=padded(K), FD=operand_type(q.dtype), **chosen)
    return y


def variants(target: int | str) -> list[Variant]:
    """What `python -m kernels.compile orthogonal_memory` compiles."""
    found = []
    for label, kind, width, running, window in (
            ("running", "bf16", 64, True, False), ("given", "bf16", 64, False, False), ("lavo", "bf16", 64, True, True),
            ("running", "bf16", 128, True, False), ("running", "fp32", 64, True, False), ("lavo", "fp32", 64, True, True)):
        constants = {"RUNNING": running, "WINDOW": window, "TABLE": int(window), "PAST": False, "STEP": VECTOR, "R": width,
                     "K": width, "DR": width, "D": width, "FD": tl.float32 if kind == "fp32" else tl.bfloat16}
        options = config(target, kind == "fp32", width > 64, window)
        constants["C"] = options.pop("C")
        types = {name: "i32" for name in memory_forward.arg_names if name not in constants}
        types |= dict.fromkeys(("q", "k", "x", "y"), f"*{kind}")
        types |= dict.fromkeys(("basis", "before", "table"), "*fp32") | dict.fromkeys(("count_B", "missing_B"), "*i32")
        types |= dict.fromkeys(("scale", "scale_local"), "fp32")
        found.append(Variant(f"memory_{label} {kind} {width}", memory_forward, types, constants,
                             options))
    return found
