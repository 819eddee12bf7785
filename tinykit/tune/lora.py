"""A frozen linear layer with a trainable low-rank part, as one function with a gradient of its own.

PyTorch would build the sum of two products and keep more than is needed; here the low-rank part is added
into the output of the big product, and no gradient of a frozen weight is ever computed.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any  # torch.Tensor, whose types the type checker does not follow


class LoraLinear(torch.autograd.Function):  # type: ignore[misc]  # Any: torch is not followed
    """``y = x Wᵀ + scale · (x Aᵢᵀ) Bᵢᵀ`` for the row blocks i of W, one for each matrix that is fused in W.

    x has shape (tokens, in), W (out, in), Aᵢ (rank, in), Bᵢ (rows of block i, rank).
    """

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, scale: float, *pairs: Tensor) -> Tensor:
        """The output, shape (tokens, out); `pairs` is A₁, B₁, A₂, B₂ and so on."""
        y = x @ weight.T
        inner = []
        start = 0
        for a, b in zip(pairs[::2], pairs[1::2], strict=True):
            inner.append(x @ a.T)
            y[:, start : start + len(b)].addmm_(inner[-1], b.T, alpha=scale)
            start += len(b)
        context.save_for_backward(x, weight, *pairs, *inner)
        context.scale = scale
        context.pairs = len(pairs)
        return y

    @staticmethod
    def backward(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x and of the pairs; the frozen weight and the scale get none."""
        x, weight, *rest = context.saved_tensors
        pairs, inner = rest[: context.pairs], rest[context.pairs :]
        dx = dy @ weight if context.needs_input_grad[0] else None
        gradients: list[Tensor] = []
        start = 0
        for a, b, h in zip(pairs[::2], pairs[1::2], inner, strict=True):
            d = dy[:, start : start + len(b)]
            start += len(b)
            dh = (d @ b).mul_(context.scale)  # (tokens, rank)
            if dx is not None:
                dx.addmm_(dh, a)
            gradients += [dh.T @ x, (d.T @ h).mul_(context.scale)]
        return dx, None, None, *gradients
