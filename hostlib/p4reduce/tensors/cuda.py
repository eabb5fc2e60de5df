# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, which travel through pinned memory of the host.

Where Triton is installed, only their non-zero blocks are copied to the host; results are copied back whole.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE


def to_host(tensor: torch.Tensor, host: torch.Tensor, *, bits: bool) -> None:
    """Copies a CUDA tensor into `host`, of the same shape, pinned and full of zeros.

    It is what the current stream makes of the tensor, and there when this returns. bits: of every element; otherwise
    its value, so that a block of float32 that holds only -0 may become +0.
    """
    # Of a negated or conjugated view the memory does not say what it shows.
    if tensor.dtype == host.dtype and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        flat, to = tensor.view(-1), host.view(-1)
        if bits and tensor.nbytes % 4 == 0 and tensor.data_ptr() % 4 == 0:
            flat, to = flat.view(torch.uint8).view(torch.int32), to.view(torch.uint8).view(torch.int32)
        packable = (torch.int32,) if bits else (torch.float32, torch.int32)
        if flat.numel() and flat.dtype in packable and _triton_works(tensor.device):
            from p4reduce.tensors.device_blocks import copy_nonzero

            with torch.cuda.device(tensor.device):
                copy_nonzero(flat, to, DEFAULT_BLOCK_SIZE)
            return
    host.copy_(tensor)


def to_device(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a host tensor into one on a CUDA device, and returns when it is there: for every stream.

    Whoever reads or writes `tensor` on any stream must have finished, as before a collective it has.
    """
    with torch.cuda.stream(_stream(tensor.device)):
        tensor.copy_(host)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Results are copied on a stream of their own, not behind whatever the user's streams have queued."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@functools.cache
def _triton_works(device: torch.device) -> bool:
    """Whether the kernels do what they must, tried once: Triton needs a C compiler when it is first used."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from p4reduce.tensors.device_blocks import copy_nonzero

        values = torch.zeros(1000)
        values[[3, 500, 999]] = torch.tensor([1.0, float("nan"), -2.0])
        host = torch.zeros(1000, pin_memory=True)
        with torch.cuda.device(device):
            copy_nonzero(values.to(device), host, DEFAULT_BLOCK_SIZE)
        if not torch.equal(host.view(torch.int32), values.view(torch.int32)):
            raise RuntimeError("a test tensor came out different")
    except Exception as error:
        warnings.warn(f"CUDA tensors are copied whole, as Triton does not work on {device}: {error}", stacklevel=2)
        return False
    return True
