# SPDX-License-Identifier: Apache-2.0
"""The compression of PyTorch's DDP hooks, without the hook.

fp16 and bf16 are those of `ddp_comm_hooks.default_hooks`, which cast, add up and cast back. int8 is that of
`quantization_pertensor_hook`, with one scale and zero point for each rank. Every rank gathers all ranks' bytes, so that
P - 1 bytes for each element move.
"""

from __future__ import annotations

from typing import Any

LEVELS = 255


def cast(dist: Any, tensor: Any, dtype: Any) -> Any:
    """Return the sum of values that are cast to `dtype`."""
    small = tensor.to(dtype)
    dist.all_reduce(small)
    return tensor.copy_(small)


def int8(torch: Any, dist: Any, tensor: Any) -> Any:
    """Return the sum of values on 256 levels."""
    low, high = tensor.aminmax()
    scale = torch.clamp((high - low) / LEVELS, min=torch.finfo(torch.float32).tiny)
    head = torch.stack([scale, low])
    codes = ((tensor - low) / scale).round_().to(torch.uint8)
    heads = [torch.empty_like(head) for _ in range(dist.get_world_size())]
    parts = [torch.empty_like(codes) for _ in heads]
    dist.all_gather(heads, head)
    dist.all_gather(parts, codes)
    tensor.zero_()
    for (scale, low), part in zip(heads, parts, strict=True):
        tensor.add_(part.to(torch.float32).mul_(scale).add_(low))
    return tensor
