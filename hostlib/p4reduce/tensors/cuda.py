# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, which travel through pinned memory of the host, in the order of the user's streams.

If Triton is installed, only their non-zero blocks are copied to the host. Results are copied back whole.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce.tensors.dense import copy_values, pinned

Wait: TypeAlias = Callable[[Callable[[], bool]], None]
"""Function that waits until a condition holds, or raises."""


class DeviceTransfer:
    """A tensor's way from its CUDA device to the host and back.

    It is made in the call of the collective, and records an event in the user's current stream. Copies use streams of
    our own, which wait for that event. So they see all that the user's stream had queued before the call, and the
    caller itself does not wait.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise P4ReduceError(
                "a collective cannot be captured into a CUDA graph, because the host takes part in it: call it before "
                "or after the graph"
            )
        self._tensor = tensor if tensor.is_sparse else tensor.detach()
        self._before = torch.cuda.current_stream(tensor.device).record_event()
        self._arrived: torch.cuda.Event | None = None

    @property
    def transfers(self) -> tuple[DeviceTransfer]:
        """This transfer itself: the same attribute as that of objects with several transfers."""
        return (self,)

    def read(self, host: torch.Tensor, *, bits: bool, wait: Wait) -> None:
        """Copy the tensor into `host`, of the same shape, pinned and full of zeros. It is there on return.

        bits: whether every element keeps its bits; otherwise a block of float32 that holds only -0 may become +0.
        wait: waits until the user's stream has computed the tensor.
        """
        wait(self._before.query)
        stream = _stream(self._tensor.device, "to the host")
        stream.wait_event(self._before)
        try:
            with torch.cuda.stream(stream):
                _to_host(self._tensor, host, bits=bits)
        finally:
            stream.synchronize()  # also after an error: the tensor may be freed afterwards

    def write(self, values: torch.Tensor) -> None:
        """Start to copy values, of the same shape and in the host's memory, into the tensor."""
        stream = _stream(self._tensor.device, "to the device")
        stream.wait_event(self._before)
        with torch.cuda.stream(stream), torch.inference_mode(self._tensor.is_inference()), torch.no_grad():
            copy_values(self._tensor, values, non_blocking=True)
        if not self._tensor.is_sparse:
            self._tensor.record_stream(stream)
        self._arrived = stream.record_event()

    def wait(self) -> None:
        """Make the current stream wait for the copy that `write` started. The caller does not wait."""
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self._tensor.device)
            stream.wait_event(self._arrived)
            if self._tensor.is_sparse:  # its memory is new, and was allocated on our stream
                self._tensor._indices().record_stream(stream)
                self._tensor._values().record_stream(stream)

    def done(self) -> bool:
        """Return whether the copy that `write` started has completed, for every stream."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]


def _to_host(tensor: torch.Tensor, host: torch.Tensor, *, bits: bool) -> None:
    # The memory of a negated or conjugated view does not hold the values that the view shows.
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        flat, to = tensor.view(-1), host.view(-1)
        if bits and tensor.nbytes % 4 == 0 and tensor.data_ptr() % 4 == 0:
            flat, to = flat.view(torch.uint8).view(torch.int32), to.view(torch.uint8).view(torch.int32)
        packable = (torch.int32,) if bits else (torch.float32, torch.int32, torch.float16, torch.bfloat16)
        if flat.numel() and flat.dtype in packable and _triton_works(tensor.device):
            from p4reduce.tensors.device_blocks import copy_nonzero

            copy_nonzero(flat, to, DEFAULT_BLOCK_SIZE)
            return
    host.copy_(tensor, non_blocking=True)


@functools.cache
def _stream(device: torch.device, way: str) -> torch.cuda.Stream:
    """Return our stream for one direction. It does not queue behind the user's streams."""
    del way
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@functools.cache
def _triton_works(device: torch.device) -> bool:
    """Return whether the kernels pass a test, made once: Triton needs a C compiler when it is first used."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from p4reduce.tensors.device_blocks import copy_nonzero

        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            values = torch.zeros(1000, dtype=torch.float32, device="cpu")
            values[3], values[500], values[999] = 1.0, 2.0**-24, -2.0
            host: Any = pinned([1000], torch.float32).zero_()
            with torch.cuda.device(device):
                copy_nonzero(values.to(device, dtype), host, DEFAULT_BLOCK_SIZE)
            if not torch.equal(host, values):
                raise RuntimeError(f"a test tensor of {dtype} came out different")
    except Exception as error:
        warnings.warn(f"CUDA tensors are copied whole, as Triton does not work on {device}: {error}", stacklevel=2)
        return False
    return True
