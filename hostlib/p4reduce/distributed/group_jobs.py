# SPDX-License-Identifier: Apache-2.0
"""The jobs of a process group: with few slots at first, with more once tensors are large, or none without free slots.

Ranks agree through the group's store, in which rank 0 writes and the others look:

| key | value | written by |
|---|---|---|
| `job N` | name of the group's job number N, or why there is none | rank 0 |
| `failure of job N` | why a rank could not join it | that rank |
| `end of job N` | the same, when rank 0 ends the job for this reason | rank 0 |
| `gone` | a rank other than 0 has ended the group | that rank |
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from torch.distributed import DistError

from p4reduce.api.communicator import Communicator
from p4reduce.control.messages import LONGEST_TIMEOUT
from p4reduce.distributed import departures
from p4reduce.distributed.options import Options
from p4reduce.errors import CollectiveTimeout, JoinError, P4ReduceError, SlotsExhausted, without_frames
from p4reduce.join.joining import Attempt

log = logging.getLogger(__name__)

FIRST_SLOTS = 4
"""Slots of a group's first job, unless the group asks for a number: enough for small tensors."""
LARGE_BYTES = 1 << 16
"""The first collective of this size makes the group ask for the controller's default number of slots."""
# Prefixes of a reason, which the store has in place of a job's name:
_NONE = "none: "
_FAILED = "failed: "
_GONE = "gone"  # the key under which a rank says that it will not join any more
_POLL_S = 0.5  # interval at which rank 0 checks whether a rank could not join
_SHORTEST_S, _LONGEST_S = 1e-3, 0.05  # first and longest interval between two reads of the store
_HINT = "; all ranks must call the same collective: a rank whose tensor has another dtype or size may use Gloo instead"

_attempts: weakref.WeakSet[Attempt] = weakref.WeakSet()


class GroupJobs:
    """A group's communicator, in one job after the other. All ranks make the same calls.

    Rank 0 joins first. When it has the job's slots, it writes the job's name to the store, or that there are no free
    slots. So all ranks take the same decision.

    `enter` and `communicator` wait for other ranks; only one thread at a time may call them. Any thread may call the
    other methods at any time.
    """

    def __init__(self, store: Any, rank: int, size: int, name: str, options: Options) -> None:
        """Begin without a job. `store`: used by this group alone. `name`: the group's name."""
        self._store = store
        self._rank, self._size = rank, size
        self._name = name
        self._options = options
        self._count = 0
        self._may_grow = False
        self._lock = threading.RLock()  # only held for assignments; reentrant, since signal handlers take it, too
        self._communicator: Communicator | None = None
        self._without = False
        self._moved = (0, 0)
        self._attempt: Attempt | None = None
        self._error: BaseException | None = None

    def check(self) -> None:
        """Raise the group's error, if it has one: then it has no communicator any more."""
        if self._error is not None:
            raise without_frames(self._error)

    def at_hand(self, nbytes: int) -> bool:
        """Return whether `communicator` returns at once, without waiting for other ranks."""
        has_joined = self._communicator is not None and not self._grows(nbytes)
        return has_joined or self._without or self._error is not None

    @property
    def without(self) -> bool:
        """Whether no switch had free slots, so that the group uses Gloo alone."""
        return self._without

    @property
    def failed(self) -> bool:
        """Whether no collective of the group can begin any more."""
        communicator = self._communicator
        return self._error is not None or (communicator is not None and communicator.failed)

    def moved(self) -> tuple[int, int]:
        """Return the bytes that this rank has sent to and received from its switches, in all of the group's jobs."""
        communicator, (sent, received) = self._communicator, self._moved
        if communicator is None:
            return sent, received
        stats = communicator.stats()
        return sent + stats.bytes_sent, received + stats.bytes_received

    def enter(self, slots: int, timeout: float) -> None:
        """Join the group's first job, with `slots` slots (0: the controller's default). Raises the group's error."""
        self.check()
        try:
            self._sit(self._join(self._options.slots or slots, timeout))
            self._may_grow = bool(slots) and not self._options.slots
        except SlotsExhausted as error:
            self._without = True
            if self._rank == 0:
                warnings.warn(f"group {self._name!r} uses Gloo, without a switch: {error}", stacklevel=2)
        except BaseException as error:
            raise self._failed(error) from None

    def communicator(self, nbytes: int, timeout: float) -> Communicator | None:
        """Return the communicator for a collective of `nbytes`, the same on all ranks; None if the group has no switch.

        Waits for all ranks if a job must be joined. If the group could not join its job, every call raises that error.
        """
        self.check()
        if self._communicator is None and not self._without:
            self.enter(FIRST_SLOTS, timeout)
        if self._grows(nbytes):
            self._may_grow = False
            self._grow(timeout)
        return self._communicator

    def close(self) -> None:
        """Leave the job without waiting for the other ranks. A join in progress is given up."""
        self._end(P4ReduceError("the process group is destroyed"), well=True)

    def abort(self, error: P4ReduceError | None = None) -> None:
        """End the job for all ranks at once, also while it is being joined. error: the error that later calls raise."""
        error = error or P4ReduceError("the process group was aborted by this rank")
        if self._end(error, well=False) is None or not self._rank:
            self._say_gone()

    def _end(self, error: P4ReduceError, *, well: bool) -> Communicator | None:
        with self._lock:
            self._error = self._error or error
            attempt, communicator = self._attempt, self._communicator
        if attempt is not None:
            attempt.give_up()
        if communicator is not None:
            departures.depart(communicator, well=well)
        return communicator

    def _grows(self, nbytes: int) -> bool:
        return self._may_grow and nbytes >= LARGE_BYTES

    def _grow(self, timeout: float) -> None:
        """Join the group's next job, which has more slots, if they are free."""
        before = self._communicator
        assert before is not None
        try:
            _drain(before)
            self._sit(self._join(0, timeout))
        except SlotsExhausted:
            return
        except BaseException as error:
            raise self._failed(error) from None
        stats = before.stats()
        self._moved = (self._moved[0] + stats.bytes_sent, self._moved[1] + stats.bytes_received)
        departures.depart(before, well=True)

    def _sit(self, communicator: Communicator) -> None:
        with self._lock:
            if self._error is None:
                self._communicator = communicator
                return
        communicator.abort()
        self.check()

    def _failed(self, error: BaseException) -> BaseException:
        """Store the error if it is the group's first, and return a copy of the first."""
        if isinstance(error, JoinError) and error.timed_out:
            told = JoinError(f"{error}{_HINT}")
            told.timed_out = True
            error = told
        with self._lock:
            self._error = self._error or without_frames(error)
            return without_frames(self._error)

    def _join(self, slots: int, timeout: float) -> Communicator:
        """Join the next job. Raises SlotsExhausted on all ranks if rank 0 gets no slots."""
        attempt = Attempt()
        _attempts.add(attempt)
        with self._lock:
            self.check()
            self._attempt = attempt
        try:
            return self._try(attempt, slots, min(timeout, LONGEST_TIMEOUT))
        except DistError as error:
            first = str(error).partition("\n")[0]
            raise JoinError(
                f"group {self._name!r}: the store does not answer, through which the group's rank 0 tells the job's "
                f"name. The process that runs the store (by default global rank 0) has ended or is unreachable: {first}"
            ) from None
        finally:
            _attempts.discard(attempt)
            with self._lock:
                self._attempt = None

    def _try(self, attempt: Attempt, slots: int, limit: float) -> Communicator:
        self._count += 1
        key = _job_key(self._count)
        if self._rank:
            return self._follow(attempt, self._told(key, limit, attempt), slots, limit)
        job = f"torch {self._name} {secrets.token_hex(8)}"
        admitted = False

        def tell() -> None:
            nonlocal admitted
            admitted = True
            self._store.set(key, job)

        def lead() -> Communicator:
            if self._store.check([_GONE]):
                raise JoinError(f"group {self._name!r}: {self._store.get(_GONE).decode()}")
            with self._giving_up_on_failure(attempt):
                return self._communicator_of(job, slots, limit, on_admitted=tell, attempt=attempt)

        try:
            try:
                return lead()
            except SlotsExhausted:
                if admitted or not departures.under_way():
                    raise
            departures.wait(limit)  # these free slots
            return lead()
        except DistError:
            raise
        except BaseException as error:
            word = _NONE if isinstance(error, SlotsExhausted) else _FAILED
            with contextlib.suppress(DistError):  # without a store, no rank can learn of it
                self._store.set(key, f"{word}{error}")
            raise

    def _follow(self, attempt: Attempt, job: str, slots: int, limit: float) -> Communicator:
        if job.startswith(_NONE):
            raise SlotsExhausted(job.removeprefix(_NONE))
        if job.startswith(_FAILED):
            raise JoinError(f"rank 0 of group {self._name!r} could not join its job: {job.removeprefix(_FAILED)}")
        try:
            return self._communicator_of(job, slots, limit, attempt=attempt)
        except Exception as error:
            if isinstance(error, JoinError) and error.timed_out:  # all other ranks time out, too
                raise
            why = ""
            with contextlib.suppress(DistError):  # without a store, no rank can learn of it
                if self._store.check([_given_up_key(self._count)]):
                    why = self._store.get(_given_up_key(self._count)).decode()
                else:
                    told = f"rank {self._rank} of group {self._name!r} could not join its job: {error}"
                    self._store.set(_failure_key(self._count), told)
            if why:
                raise JoinError(why) from None
            raise

    @contextlib.contextmanager
    def _giving_up_on_failure(self, attempt: Attempt) -> Iterator[None]:
        """Give up rank 0's attempt, and with it the job, if another rank reports that it could not join or has aborted.

        The controller does not know of a rank that has not reached it, or that cannot reach the switch.
        """
        over, why, job = threading.Event(), "", self._count

        def watch() -> None:
            nonlocal why
            if over.wait(_POLL_S):
                return
            with contextlib.suppress(DistError):  # without a store, no rank can report anything
                store = with_own_client(self._store)
                while not (told := [key for key in (_failure_key(job), _GONE) if store.check([key])]):
                    if over.wait(_POLL_S):
                        return
                reason = store.get(told[0]).decode()
                if told[0] == _GONE:
                    reason = f"group {self._name!r}: {reason}"
                store.set(_given_up_key(job), reason)
                if not over.is_set():
                    why = reason
                    attempt.give_up()

        thread = threading.Thread(target=watch, name=f"p4reduce joins {self._name}", daemon=True)
        try:
            thread.start()
            yield
        except JoinError:
            if why:
                raise JoinError(why) from None
            raise
        finally:
            over.set()  # without a join: the thread may be waiting for a store that does not answer

    def _communicator_of(self, job: str, slots: int, limit: float, **how: Any) -> Communicator:
        options = {**asdict(self._options), "slots": slots}
        if slots and not self._options.slots:
            options["threads"] = 1  # enough for few slots
        return Communicator(job=job, rank=self._rank, world_size=self._size, timeout=limit, **options, **how)

    def _told(self, key: str, limit: float, attempt: Attempt) -> str:
        """Return the value that rank 0 has written, when it is there.

        It polls, since a wait would block the store's client, which serves one call at a time.
        """
        store = with_own_client(self._store)
        deadline, pause = time.monotonic() + limit, _SHORTEST_S
        while not store.check([key]):
            if attempt.given_up.wait(pause):
                self._say_gone()
            attempt.check()
            if time.monotonic() >= deadline:
                raise CollectiveTimeout(
                    f"rank 0 of group {self._name!r} did not start the job of the group's first collective within "
                    f"{limit:g} s{_HINT}",
                    awaited=(0,),
                )
            pause = min(2 * pause, _LONGEST_S)
        told: str = store.get(key).decode()
        return told

    def _say_gone(self) -> None:
        """Write to the store that this rank has ended the group.

        Rank 0 reads this before it begins a job. If this is rank 0, the others read it while they wait for a job.
        """
        text = f"rank {self._rank} has ended the group on its side"
        with contextlib.suppress(DistError):
            if self._rank:
                self._store.set(_GONE, text)
            else:
                self._store.set(_job_key(self._count + 1), f"{_FAILED}{text}")


def _failure_key(number: int) -> str:
    return f"failure of job {number}"


def _given_up_key(number: int) -> str:
    """Return the key under which rank 0 repeats the failure because of which it ends the job."""
    return f"end of job {number}"


def _job_key(number: int) -> str:
    return f"job {number}"


def with_own_client(store: Any) -> Any:
    """Return the store with a client of its own, which no other caller's wait blocks; `store` if it has no clones."""
    try:
        return store.clone()
    except (AttributeError, NotImplementedError):
        return store


def _drain(communicator: Communicator) -> None:
    """Wait until no collective is in flight. Raises P4ReduceError if the job has failed."""
    try:
        communicator.drain()
    except P4ReduceError:
        raise
    except Exception as error:  # of a single tensor, perhaps on this rank alone: its own work raises it
        log.debug("a collective failed before its group's next job: %s", error)


@atexit.register
def _at_exit() -> None:
    """Give up joins in progress, whose sessions must not live until the interpreter ends."""
    for attempt in list(_attempts):
        attempt.give_up()
