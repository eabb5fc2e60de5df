# SPDX-License-Identifier: Apache-2.0
"""Copies that replace tensors of a call while it is in flight.

Three kinds of tensors need one:

- A tensor that is not contiguous, in a call by Gloo. Gloo reads and writes as many consecutive elements as the tensor
  has, from its first one on, whatever its strides are.
- A tensor on a device, in calls for which Gloo reads and writes the host's memory only. Gloo does not check this: the
  process would crash.
- An output that shares memory with another tensor of its call. All inputs of a call are read before any output is
  written.

Outputs are written from their copies when the whole call has ended well, in the order in which they were given. If they
share memory, the last one wins.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from p4reduce.distributed.compiled import called_by_cpp
from p4reduce.distributed.work import NO_TIMEOUT, BaseWork, Tensors, leave_all
from p4reduce.tensors.dense import assign
from p4reduce.tensors.spec import describe


class Copies:
    """The copies of one call. Its methods return tensors that need no copy as they are."""

    def __init__(self, *, contiguous: bool = True, on_host: bool = False) -> None:
        """Begin without copies.

        contiguous: whether tensors that are not contiguous need a copy.
        on_host: whether tensors on a device need a copy on the host.
        """
        self._contiguous = contiguous
        self._on_host = on_host
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def inputs(self, tensors: Iterable[torch.Tensor], *, always: bool = False) -> Tensors:
        """Return tensors that are only read, without their graphs, which Gloo would pass to outputs.

        always: copy all of them.
        """
        return [self._copy(each) if always or self._needs_copy(each) else each.detach() for each in tensors]

    def outputs(
        self,
        tensors: Sequence[torch.Tensor],
        inputs: Iterable[torch.Tensor] = (),
        *,
        always: bool = False,
        raises_version: bool = False,
    ) -> Tensors:
        """Return tensors that are written.

        inputs: all tensors that the call reads. always: copy all of them.
        raises_version: whether autograd's version counters of copied tensors rise, like those that Gloo itself writes.
        """
        sharing = _sharing(tensors, inputs)
        return [
            self._output(each, raises_version) if always or index in sharing or self._needs_copy(each) else each
            for index, each in enumerate(tensors)
        ]

    def in_place(self, tensors: Sequence[torch.Tensor], *, always: bool = False) -> Tensors:
        """Return tensors that are read and written. Autograd's version counters stay as they are."""
        return self.outputs(tensors, always=always)

    def finish(self, work: Any, outputs: Tensors) -> Any:
        """Return the call's work, which ends when all of its `outputs` are written."""
        return CopiedWork(work, self._write, outputs) if self._written else work

    def _needs_copy(self, tensor: torch.Tensor) -> bool:
        if not self._contiguous or tensor.layout is not torch.strided or not tensor.numel():
            return False
        if self._on_host and tensor.device.type != "cpu":
            return True
        return not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy with the elements in row-major order."""
        device = torch.device("cpu") if self._on_host else tensor.device
        copy = torch.empty_like(tensor, device=device, memory_format=torch.contiguous_format, requires_grad=False)
        return copy.copy_(tensor.detach())

    def _output(self, tensor: torch.Tensor, raises_version: bool) -> torch.Tensor:
        describe(tensor).check_writable(tensor)
        copy = self._copy(tensor)
        # `data` has a version counter of its own; `detach()` shares the tensor's.
        self._written.append((tensor.detach() if raises_version else tensor.data, copy))
        return copy

    def _write(self) -> None:
        for tensor, copy in self._written:
            assign(tensor, copy)
            if copy.is_cuda:  # the memory may be used on another stream than the one on which it was allocated
                stream = torch.cuda.current_stream(copy.device)
                copy.record_stream(stream)
                tensor.record_stream(stream)


@called_by_cpp
class CopiedWork(BaseWork):
    """A work whose outputs are written from copies at its end.

    The thread that completes the work's future writes them. Gloo's receives and list reductions have no future: then
    the thread writes them that finds the work ended.
    """

    def __init__(self, work: Any, write: Callable[[], None], outputs: Tensors) -> None:
        super().__init__(outputs)
        self._work = work
        self._lock = threading.Lock()
        self._write: Callable[[], None] | None = write
        self._future: torch.futures.Future[Tensors] | None = None

        def settle(ended: torch.futures.Future[Any]) -> Tensors:
            ended.value()  # raises the work's error
            write()
            return outputs

        with contextlib.suppress(RuntimeError):  # the work has no future
            self._future = work.get_future().then(settle)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the work, and until the outputs are written."""
        self._work.wait(timeout)
        try:
            self._finish()
        except BaseException as error:
            self.leave(error)
            raise
        return True

    def leave(self, error: BaseException) -> None:
        """Fail the work, or wait until it has ended: see `leave_all`. Outputs of a work that ended well are written."""
        leave_all([self._work], error)
        if self._future is not None:
            with contextlib.suppress(Exception):
                self._future.wait()

    def _finish(self) -> None:
        """Wait until the outputs are written, after the work has ended well."""
        if self._future is not None:
            self._future.wait()
            return
        with self._lock:
            if self._write is not None:
                self._write()
                self._write = None

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        if self._future is not None:
            return bool(self._future.done())
        if not self._work.is_completed():
            return False
        if self._work.is_success():
            self._finish()
        return True

    def exception(self) -> Any:
        """Return the work's error, None if it has none."""
        if not self.is_completed():
            return None
        if self._future is None:
            return self._work.exception()
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the error. Raises RuntimeError if the work has none."""
        return self._work.get_future() if self._future is None else self._future

    def _source_rank(self) -> int:
        """Return the rank that has sent the received tensor."""
        return int(self._work._source_rank())


def flattened(lists: Iterable[Iterable[torch.Tensor]]) -> Tensors:
    """Return the tensors of all lists, one after the other."""
    return [each for tensors in lists for each in tensors]


def as_lists_like(lists: Iterable[Iterable[torch.Tensor]], tensors: Iterable[torch.Tensor]) -> list[Tensors]:
    """Return tensors as lists of the same lengths as `lists`: the reverse of `flattened`."""
    rest = iter(tensors)
    return [[next(rest) for _ in each] for each in lists]


def as_bytes(tensors: Iterable[torch.Tensor]) -> Tensors:
    """Return contiguous tensors as tensors of bytes, since Gloo refuses to move dtypes that it does not know."""
    return [each.detach().reshape(-1).view(torch.uint8) for each in tensors]


def _sharing(tensors: Sequence[torch.Tensor], others: Iterable[torch.Tensor]) -> set[int]:
    """Return the indices of those in `tensors` that may share memory with another tensor of either list."""
    spans = [(*span, index) for index, each in enumerate(tensors) if (span := _span(each))]
    spans += [(*span, -1) for each in others if (span := _span(each))]
    found: set[int] = set()
    last, reach, owner = "", 0, -1  # device, end and owner of the span that ends last, so far
    for device, start, end, index in sorted(spans):
        if device == last and start < reach:
            found |= {index, owner}
        if device != last or end > reach:
            last, reach, owner = device, end, index
    return found - {-1}


def _span(tensor: torch.Tensor) -> tuple[str, int, int] | None:
    """Return the device, and the addresses of the first element and behind the last one; None for no elements."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    reach = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return str(tensor.device), start, start + (reach + 1) * tensor.element_size()
