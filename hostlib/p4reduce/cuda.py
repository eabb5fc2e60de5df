# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, which travel through pinned memory of the host."""

from __future__ import annotations

import functools

import torch


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Results are copied on a stream of their own, not behind whatever the user's streams have queued."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def to_device(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a host tensor into one on a CUDA device, and returns when it is there: for every stream.

    Whoever reads or writes `tensor` on any stream must have finished, as before a collective it has.
    """
    with torch.cuda.stream(_stream(tensor.device)):
        tensor.copy_(host)
