# SPDX-License-Identifier: Apache-2.0
"""PyTorch's wrappers of hooks, which round gradients ahead of them.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper as fp16_wrapper

from p4reduce.ddp.recording import Hook

__all__ = ["bf16_wrapper", "fp16_wrapper"]


def bf16_wrapper(hook: Hook) -> Hook:
    """PyTorch's `bf16_compress_wrapper`, on CPUs as well: DDP knows that by its name, and takes it for NCCL's alone."""
    wrapped: Hook = bf16_compress_wrapper(hook)
    wrapped.__name__ = "bf16_wrapper"
    return wrapped
