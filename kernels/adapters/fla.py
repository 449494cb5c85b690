"""flash-linear-attention's Triton kernels behind our signatures: gated_scan and delta_scan on a GPU.

Written for 0.6.0. Its tensors are ours, [B, T, H, ·], and so are its decay (natural logarithm, one a head or one a
channel, acting before the write) and its state (B, H, K, V) in float32. What differs is handled here: it knows no pads,
its sums of log-decays run over 64 tokens in float32, and each function takes its own types. The package is imported
when a function is called, not before.
"""

from __future__ import annotations

import torch

from kernels.taylor.features import first_tokens

# e^-60 is nothing beside 1 in float32, and sums of 64 larger numbers would cost their neighbours' digits
LEAST_LOG_DECAY = -60.0
LOW_TYPES = (torch.bfloat16, torch.float16)
WIDEST_KEY = 256  # of the delta rule's kernels


def gated_reason(q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor) -> str | None:
    """Why fla cannot take these inputs of `gated_scan`, None if it can."""
    return _type_reason((q_BLHK, k_BLHK, v_BLHV), (*LOW_TYPES, torch.float32))


def delta_reason(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, log_decay_BLH: torch.Tensor | None,
) -> str | None:
    """Why fla cannot take these inputs of `delta_scan`, None if it can."""
    if k_BLHK.shape[-1] > WIDEST_KEY:
        return f"its kernels take keys of at most {WIDEST_KEY} numbers a head, got {k_BLHK.shape[-1]}"
    types = LOW_TYPES if log_decay_BLH is None else (*LOW_TYPES, torch.float32)
    return _type_reason((q_BLHK, k_BLHK, v_BLHV), types)


def _type_reason(tensors: tuple[torch.Tensor, ...], types: tuple[torch.dtype, ...]) -> str | None:
    found = {x.dtype for x in tensors}
    if len(found) > 1 or not found <= set(types):
        return f"it takes q, k and v of one type among {_names(types)}, got {_names(found)}"
    if torch.float32 in found and torch.get_float32_matmul_precision() == "highest":
        return ("it multiplies float32 as TF32, good to three digits; where that will do, "
                "call torch.set_float32_matmul_precision('high')")
    return None


def _names(types) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))


def gated_scan(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, log_decay: torch.Tensor, *,
    lengths_B: torch.Tensor | None, state: torch.Tensor | None, scale: float, return_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `kernels.gated_scan.gated_scan`: (y_BLHV, state or None)."""
    if log_decay.dim() == 4:
        from fla.ops.gla import chunk_gla as run
    else:
        from fla.ops.simple_gla import chunk_simple_gla as run

    keep_BL = first_tokens(lengths_B, q_BLHK.shape[1]) if return_state else None
    return run(q=q_BLHK, k=_without_pads(k_BLHK, keep_BL), v=v_BLHV, g=_bounded(log_decay, keep_BL), scale=scale,
               initial_state=state, output_final_state=return_state)


def delta_scan(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, beta_BLH: torch.Tensor, *,
    log_decay_BLH: torch.Tensor | None, lengths_B: torch.Tensor | None, state: torch.Tensor | None, scale: float,
    return_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `kernels.delta_scan.delta_scan`: (y_BLHV, state or None)."""
    keep_BL = first_tokens(lengths_B, q_BLHK.shape[1]) if return_state else None
    settings = {"q": q_BLHK, "k": k_BLHK, "v": v_BLHV, "beta": _without_pads(beta_BLH, keep_BL).to(v_BLHV.dtype),
                "scale": scale, "initial_state": state, "output_final_state": return_state}
    if log_decay_BLH is None:
        from fla.ops.delta_rule import chunk_delta_rule

        return chunk_delta_rule(**settings)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule(g=_bounded(log_decay_BLH, keep_BL), **settings)


def _without_pads(x: torch.Tensor, keep_BL: torch.Tensor | None) -> torch.Tensor:
    """x (B, L, ...), 0 where `keep_BL` is False."""
    return x if keep_BL is None else x * keep_BL.view(*keep_BL.shape, *[1] * (x.dim() - 2))


def _bounded(log_decay: torch.Tensor, keep_BL: torch.Tensor | None) -> torch.Tensor:
    """Log-decays in float32, none so strong that fla's float32 sums would lose the others, 0 at pads."""
    return _without_pads(log_decay.float().clamp(min=LEAST_LOG_DECAY), keep_BL)
