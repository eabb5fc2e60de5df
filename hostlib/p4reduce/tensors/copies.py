# SPDX-License-Identifier: Apache-2.0
"""Copies between torch tensors of different dtypes, which have the same bits at every rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def copy_values(tensor: torch.Tensor, values: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Writes `values` into a torch tensor. What becomes bfloat16 has one NaN on all ranks: of torch's, the bits depend
    on strides, processor and device."""
    import torch

    tensor.copy_(values, non_blocking=non_blocking)
    if tensor.dtype == torch.bfloat16 != values.dtype:
        tensor.masked_fill_(tensor.isnan(), math.nan)
