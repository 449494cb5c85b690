"""The short convolution as K shifted multiply-adds, with a hand-written backward (eager conv1d is twice as slow)."""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable


class ShortConv(torch.autograd.Function):
    """y_i = sum_o weight[:, K-1-o] x_(i-o), taps before slot 0 or before the document left out."""

    @staticmethod
    def forward(ctx, x_BLD, weight_DK, position_BL):
        K = weight_DK.shape[1]
        y = x_BLD * weight_DK[:, K - 1]
        for offset in range(1, min(K, x_BLD.shape[1])):
            earlier = x_BLD[:, :-offset]
            if position_BL is not None:
                earlier = earlier * (position_BL[:, offset:, None] >= offset)
            y[:, offset:].addcmul_(earlier, weight_DK[:, K - 1 - offset])
        ctx.save_for_backward(x_BLD, weight_DK, position_BL)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight_DK, position_BL = ctx.saved_tensors
        K = weight_DK.shape[1]
        dx, dweight = g * weight_DK[:, K - 1], torch.zeros_like(weight_DK)
        dweight[:, K - 1] = (g * x).sum((0, 1))
        for offset in range(1, min(K, x.shape[1])):
            reached = g[:, offset:]
            if position_BL is not None:
                reached = reached * (position_BL[:, offset:, None] >= offset)
            dx[:, :-offset].addcmul_(reached, weight_DK[:, K - 1 - offset])
            dweight[:, K - 1 - offset] = (reached * x[:, :-offset]).sum((0, 1))
        return dx, dweight, None


def short_conv_chunked(x_BLD, weight_DK, *, bias_D, past_BPD, position_BL) -> torch.Tensor:
    """See `kernels.short_conv.short_conv`."""
    if past_BPD is not None and past_BPD.shape[1]:
        y = ShortConv.apply(torch.cat((past_BPD, x_BLD), 1), weight_DK, None)[:, past_BPD.shape[1] :]
    else:
        y = ShortConv.apply(x_BLD, weight_DK, position_BL)
    return y if bias_D is None else y + bias_D
