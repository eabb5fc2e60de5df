# SPDX-License-Identifier: Apache-2.0
"""How a process group comes by slots of the switch: few at first, more when it has much to reduce, or none at all."""

from __future__ import annotations

import logging
import secrets
import threading
import warnings
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from p4reduce.communicator import Communicator
from p4reduce.distributed.options import Options
from p4reduce.distributed.work import as_backend_error
from p4reduce.errors import CollectiveTimeout, P4ReduceError, SlotsExhausted

log = logging.getLogger(__name__)

FIRST_SLOTS = 4
"""Of a group that has not asked for a number of them: enough for what is small."""
LARGE_BYTES = 1 << 16
"""The first collective of so many bytes makes the group ask for the controller's default of slots."""
LONGEST_TIMEOUT_S = 86400.0  # of the controller
_NONE = "none: "  # in the place of a job's name


class Seats:
    """A group's communicator, in one job after the other. All ranks call it alike.

    Rank 0 joins first: when it has the job's slots, it tells the others the job's name through the store, and where
    there are none, that there is no job. So all ranks take the same way.
    """

    def __init__(self, store: Any, rank: int, size: int, name: str, options: Options) -> None:
        """`store`: of this group alone. `name`: of the group."""
        self._store = store
        self._rank, self._size = rank, size
        self._name = name
        self._options = options
        self._lock = threading.Lock()
        self._jobs = 0
        self._communicator: Communicator | None = None
        self._may_grow = False
        self._error: Exception | None = None

    def take(self, slots: int, timeout: float) -> None:
        """Joins a job of so many slots, 0 for the controller's default; the first call counts."""
        with self._lock:
            if not self._jobs:
                self._enter(self._options.slots or slots, timeout)
                self._may_grow = self._communicator is not None and bool(slots) and not self._options.slots

    def communicator(self, nbytes: int, timeout: float) -> Communicator | None:
        """For a collective of so many bytes, the same on all ranks; None where the group goes without a switch.

        Waits for all ranks where a job is to be joined. Raises DistBackendError; a group that could not join its job
        raises that again at every call.
        """
        self.take(FIRST_SLOTS, timeout)
        with self._lock:
            if self._error is not None:
                raise as_backend_error(self._error) from self._error
            if self._may_grow and nbytes >= LARGE_BYTES:
                self._may_grow = False
                self._grow(timeout)
            return self._communicator

    def close(self) -> None:
        """Leaves the job, together with the other ranks."""
        with self._lock:
            if self._communicator is not None:
                self._communicator.close()

    def _enter(self, slots: int, timeout: float) -> None:
        """The first job."""
        try:
            self._communicator = self._join(slots, timeout)
        except SlotsExhausted as error:
            if self._rank == 0:
                warnings.warn(f"group {self._name!r} goes through Gloo, without a switch: {error}", stacklevel=2)
        except (P4ReduceError, ValueError) as error:
            self._error = error
            raise as_backend_error(error) from error

    def _grow(self, timeout: float) -> None:
        """The next job, if its slots can be had."""
        before = self._communicator
        assert before is not None
        try:
            _drain(before)
            self._communicator = self._join(0, timeout)
        except SlotsExhausted:
            return
        except P4ReduceError as error:
            self._error = error
            raise as_backend_error(error) from error
        before.close()

    def _join(self, slots: int, timeout: float) -> Communicator:
        """Raises SlotsExhausted on all ranks if it does on rank 0."""
        limit = min(timeout, LONGEST_TIMEOUT_S)
        self._jobs += 1
        key = f"job {self._jobs}"
        job = f"torch {self._name} {secrets.token_hex(8)}" if self._rank == 0 else self._told(key, limit)

        def tell() -> None:
            if self._rank == 0:
                self._store.set(key, job)

        options = {**asdict(self._options), "slots": slots}
        try:
            return Communicator(
                job=job, rank=self._rank, world_size=self._size, timeout=limit, on_admitted=tell, **options
            )
        except SlotsExhausted as error:
            if self._rank == 0:
                self._store.set(key, f"{_NONE}{error}")
            raise
        except Exception:
            tell()  # so that the others find out by themselves
            raise

    def _told(self, key: str, limit: float) -> str:
        try:
            self._store.wait([key], timedelta(seconds=limit))
        except DistStoreError as error:
            raise CollectiveTimeout(
                f"rank 0 of group {self._name!r} has not begun the job of its first collective within {limit:g} s",
                awaited=(0,),
            ) from error
        job: str = self._store.get(key).decode()
        if job.startswith(_NONE):
            raise SlotsExhausted(job.removeprefix(_NONE))
        return job


def _drain(communicator: Communicator) -> None:
    """Waits until no collective is under way. Raises the error of the job, P4ReduceError."""
    try:
        communicator.drain()
    except P4ReduceError:
        raise
    except Exception as error:  # of one tensor, on this rank perhaps alone: its own work raises it
        log.debug("a collective ended badly before its group's next job: %s", error)
