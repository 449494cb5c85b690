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
    log_decay_H = decay_H.to(q1).log()
    age_GL = (time_BL[:, None, :] * log_decay_H[:, None]).reshape(B * H, L)  # log of the decay since the row's start
    sums = join(state)
    if sums is None:
        sums = q1.new_zeros(B * H, expanded_width(K), V + 1)
    before_G, outputs = q1.new_zeros(B * H, 1), []
    for start in range(0, L, chunk):
        q_, k_, v_, age = (x[:, start : start + chunk] for x in (q1, k1, v1, age_GL))
        u = torch.bmm(q_, k_.transpose(1, 2))
        weights = ((u * u + 1) / 2).tril()
        since = (age[:, :, None] - age[:, None, :]).clamp(max=0).exp()
        phi_q, phi_k, last = expand(q_), expand(k_), age[:, -1:]
        kept = torch.bmm(phi_q, sums)
        numerator = torch.bmm(weights * since, v_[..., :V]) + kept[..., :V] * (age - before_G).exp().unsqueeze(-1)
        divisor = weights.sum(-1, keepdim=True) if real_BL is None else torch.bmm(weights, v_[..., V:])
        outputs.append(numerator / (divisor + kept[..., V:] + eps))
        write = torch.cat((v_[..., :V] * (last - age).exp().unsqueeze(-1), v_[..., V:]), dim=-1)
        fade = torch.ones_like(sums[..., :1, :])
        fade[..., :V] = (last - before_G).exp().unsqueeze(-1)
        sums, before_G = sums * fade + torch.bmm(phi_k.transpose(1, 2), write), last
    y_BLHV = torch.cat(outputs, 1).unflatten(0, (B, H)).transpose(1, 2).to(v_BLHV.dtype)
    return y_BLHV, split(sums, B)
