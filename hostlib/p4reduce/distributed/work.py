# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous collective of the backend gives to its caller."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import DistBackendError

from p4reduce.handle import Handle

NO_TIMEOUT = timedelta(0)


class SwitchWork(Work):
    """Several collectives under way as one `torch.distributed.Work`."""

    def __init__(self, handles: Sequence[Handle[Any]], outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._handles = handles
        self._outputs = outputs
        self._left = len(handles)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: DistBackendError | None = None
        devices: Any = list({output.device for output in outputs if output.is_cuda})
        # An exception that Python sets on a future is none for C++, such as DDP's; one that a callback raises is.
        self._trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        self._future = self._trigger.then(self._settle)
        for handle in handles:
            handle.add_done_callback(self._one_ended)

    def _one_ended(self, handle: Handle[Any]) -> None:
        with self._lock:
            error = handle.exception(0)
            if error is not None and self._error is None:
                self._error = as_backend_error(error)
            self._left -= 1
            if self._left:
                return
        self._ended.set()
        self._trigger.set_result(None)

    def _settle(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits until the results are there; raises DistBackendError if they will not come, or not within `timeout`."""
        seconds = timeout.total_seconds() if timeout > NO_TIMEOUT else None
        try:
            for handle in self._handles:
                handle.exception(seconds)
        except Exception as error:
            raise as_backend_error(error) from error
        self._ended.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> DistBackendError | None:
        """Why it ended badly; None if it did not."""
        return self._error if self._ended.is_set() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results. Raises RuntimeError while they do not."""
        if not self.is_success():
            raise RuntimeError("the collective has not ended well: call wait() first")
        return self._outputs

    def synchronize(self) -> None:
        """As `wait`: results are in place for every stream when the work has ended."""
        self.wait()

    def get_future(self) -> Any:
        """A torch.futures.Future of `result()`, or of the error."""
        return self._future


def as_backend_error(error: BaseException) -> DistBackendError:
    """What torch.distributed documents as an error of a backend; its cause says more to programs."""
    told = DistBackendError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
