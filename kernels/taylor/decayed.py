"""Taylor attention whose numerator forgets at a fixed rate per head: the Based 360M variant (`fixed_decay`).

Released config, JRT repository: A_ij is multiplied by decay^(i-j), the normaliser is not decayed. Plain autograd,
since no other released model has it. Pads neither write nor let time pass.
"""

from __future__ import annotations

import torch

from kernels.taylor.features import augmented, expand, expanded_width, first_tokens, placed_values
from kernels.taylor.state import join, split


def decayed_chunked(q_BLHK, k_BLHK, v_BLHV, *, state, lengths_B, scale, eps, decay_H, chunk):
    """As `taylor_naive` with `decay_H`, in chunks: returns (y_BLHV, state)."""
    B, L, H, K = q_BLHK.shape
    V = v_BLHV.shape[-1]
    real_BL = first_tokens(lengths_B, L)
    q1, k1 = (augmented(x, scale**0.5) for x in (q_BLHK, k_BLHK))
    v1 = placed_values(v_BLHV, real_BL)
    time_BL = torch.arange(1, L + 1, device=q1.device).expand(B, L)
    if real_BL is not None:
        time_BL = real_BL.cumsum(1)
    log_decay_G = decay_H.to(q1).log().repeat(B)
    # spans of time are integers: their differences are exact, so that the weakest memory keeps its gradient
    time_GL = time_BL.to(q1.dtype).repeat_interleave(H, 0)
    kept_for = lambda span: (span.clamp(min=0) * log_decay_G.view(-1, *[1] * (span.dim() - 1))).exp()  # noqa: E731
    sums = join(state)
    if sums is None:
        sums = q1.new_zeros(B * H, expanded_width(K), V + 1)
    before, outputs = q1.new_zeros(B * H, 1), []
    for start in range(0, L, chunk):
        q_, k_, v_, time = (x[:, start : start + chunk] for x in (q1, k1, v1, time_GL))
        u = torch.bmm(q_, k_.transpose(1, 2))
        weights = ((u * u + 1) / 2).tril()
        since = kept_for(time[:, :, None] - time[:, None, :])
        phi_q, phi_k, last = expand(q_), expand(k_), time[:, -1:]
        kept = torch.bmm(phi_q, sums)
        numerator = torch.bmm(weights * since, v_[..., :V]) + kept[..., :V] * kept_for(time - before).unsqueeze(-1)
        divisor = weights.sum(-1, keepdim=True) if real_BL is None else torch.bmm(weights, v_[..., V:])
        outputs.append(numerator / (divisor + kept[..., V:] + eps))
        write = torch.cat((v_[..., :V] * kept_for(last - time).unsqueeze(-1), v_[..., V:]), dim=-1)
        fade = torch.ones_like(sums[..., :1, :])
        fade[..., :V] = kept_for(last - before).unsqueeze(-1)
        sums, before = sums * fade + torch.bmm(phi_k.transpose(1, 2), write), last
    y_BLHV = torch.cat(outputs, 1).unflatten(0, (B, H)).transpose(1, 2).to(v_BLHV.dtype)
    return y_BLHV, split(sums, B)
