"""LoRA layers that compute what peft's compute in a fraction of the time: for training, sampling and serving alike."""

from collections.abc import Callable
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn.functional import linear

FEW_ROWS = 512  # below it, making the sum takes longer than the thin products of peft's way


class FusedLoraLinear(LoraLinear):
    """peft's LoRA on a linear layer, computed as the merged layer where that is exact enough and pays.

    In 16 bits nothing is merged, which would round the LoRA away. Its products are then in the base's dtype, added to
    the layer's own. peft computes them in float32, in several times the time of the layer itself.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """[..., I] -> [..., O], as peft computes it up to rounding."""
        base = cast(nn.Linear, self.get_base_layer())
        active = self.active_adapters
        plain = self.disable_adapters or self.merged or args or kwargs or len(active) != 1
        if plain or active[0] not in self.lora_A or x.dtype != base.weight.dtype or x.dtype == torch.float64:
            return super().forward(x, *args, **kwargs)
        if x.dtype == torch.float32 and x.numel() < FEW_ROWS * x.shape[-1]:
            return super().forward(x)
        name = active[0]
        down, up = self.lora_A[name].weight, self.lora_B[name].weight
        rows = x.reshape(-1, x.shape[-1])
        apply: Callable[..., Tensor] = _LoraLinear.apply
        return apply(rows, base.weight, base.bias, down, up, self.scaling[name]).view(*x.shape[:-1], -1)


class _LoraLinear(torch.autograd.Function):
    """x W^T + b + s (x A^T) B^T, with gradients of x, A and B. Shapes: x [N, I], W [O, I], A [R, I], B [O, R].

    In float32 x is multiplied by W + s B A. In 16 bits A and B are cast to x's type, and their gradients are float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI, a_RI, b_OR)
        ctx.scale = scale
        if x_NI.dtype == torch.float32:
            return linear(x_NI, torch.addmm(weight_OI, b_OR, a_RI, alpha=scale), bias_O)
        down_NR = linear(x_NI, a_RI.to(x_NI.dtype))
        return linear(x_NI, weight_OI, bias_O).addmm_(down_NR, b_OR.t().to(x_NI.dtype), alpha=scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_OI, *lora = ctx.saved_tensors
        a_RI, b_OR = (each.to(x_NI.dtype) for each in lora)
        dx_NI = da_RI = db_OR = None
        up_NR = (gradient_NO @ b_OR).mul_(ctx.scale)
        if ctx.needs_input_grad[0] and x_NI.dtype == torch.float32:
            dx_NI = gradient_NO @ torch.addmm(weight_OI, b_OR, a_RI, alpha=ctx.scale)
        elif ctx.needs_input_grad[0]:
            dx_NI = (gradient_NO @ weight_OI).addmm_(up_NR, a_RI)
        if ctx.needs_input_grad[3]:
            da_RI = (up_NR.t() @ x_NI).float()
        if ctx.needs_input_grad[4]:
            db_OR = (gradient_NO.t() @ linear(x_NI, a_RI).mul_(ctx.scale)).float()
        return dx_NI, None, None, da_RI, db_OR, None


def fuse_lora(model: nn.Module) -> None:
    """Let the LoRA layers of a model that lie on plain linear layers compute so. Others stay as they are."""
    for layer in model.modules():
        if type(layer) is LoraLinear and type(layer.get_base_layer()) is nn.Linear:
            layer.__class__ = FusedLoraLinear
