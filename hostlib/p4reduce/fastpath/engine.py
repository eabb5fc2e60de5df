# SPDX-License-Identifier: Apache-2.0
"""The C engine: a C thread runs operations, and a Python thread notifies callers of their ends.

A caller that waits (`wait`, `run_inline`) may notice the end before the Python thread does. Whichever comes first calls
`on_end` (see `_UnderWay`). C code does not hear of signals, so a wait is a series of short calls into C.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from p4reduce.engine import engine as base
from p4reduce.engine.engine import CLOSE_TIMEOUT_S, Engine, OnEnd, Prepared, Tell, error_of, in_spite_of_signals
from p4reduce.errors import JobAborted, MismatchError, OperationRefused, without_frames
from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import library, ranks, request_of, to_c, to_exception, to_stats
from p4reduce.protocol import Membership, Operation, Stats, float_mode
from p4reduce.transport import SharedTransport, StripedTransport, Transport
from p4reduce.transport.raw import RawTransport
from p4reduce.transport.udp import UdpTransport

_TEXT_BYTES = 512
_SLICE_S = 0.05  # longest wait within one call into C, so that a signal is handled promptly
_HOLD_SLICE_S = 1.0  # the same for the thread that follows a pause; C ends the wait early for any news


@dataclass(frozen=True)
class Link:
    """The parts of a transport that the C engine takes over.

    sockets: one for each aggregator, thread by thread. headers: those of its frames, for a raw socket.
    jobs: the job's number and generation at each of these aggregators; () if they are those of the thread.
    spares: how many of each thread's aggregators, the last ones, have no slots at first.
    """

    kind: int
    sockets: tuple[int, ...]
    headers: bytes | None = None
    jobs: tuple[tuple[int, int], ...] = ()
    spares: int = 0


def link_of(transport: Transport | SharedTransport) -> Link | None:
    """Return the link of `transport`; None if the C engine does not have this transport."""
    if isinstance(transport, SharedTransport):
        links = [link for link in map(link_of, transport.parts) if link is not None and link.kind == c.LINK_UDP]
        if len(links) < len(transport.parts):
            return None
        sockets = tuple(socket for link in links for socket in link.sockets)
        jobs = tuple(job for link in links for job in link.jobs)
        return Link(c.LINK_UDP, sockets, jobs=jobs, spares=links[0].spares)
    if type(transport) is UdpTransport:
        return Link(c.LINK_UDP, (transport.fileno(),))
    if type(transport) is RawTransport:
        return Link(c.LINK_PACKET, (transport.fileno(),), transport.headers_without_lengths())
    if type(transport) is StripedTransport and all(type(part) is UdpTransport for part in transport.parts):
        sockets = tuple(part.fileno() for part in transport.parts)
        return Link(c.LINK_UDP, sockets, jobs=transport.jobs, spares=transport.spares)
    return None


def packed(jobs: Iterable[tuple[int, int]]) -> list[int]:
    """Return job numbers and generations in the form that C takes: one word for each pair."""
    return [job << 16 | generation for job, generation in jobs]


def _words(numbers: Sequence[int]) -> Any:
    """Return an array of 32-bit words; None if there are none."""
    return c.array_of(ctypes.c_uint32, len(numbers))(*numbers) if numbers else None


class _UnderWay:
    """An operation whose caller has not been notified of its end.

    The thread that waits for the operation notifies the caller, or the engine's own: whichever comes first. `_telling`
    makes the other wait meanwhile. `_untold` stays locked until the caller has been notified.
    """

    def __init__(
        self, held: object, name: str, on_end: OnEnd | None = None, finish: Callable[[], None] | None = None
    ) -> None:
        """Record an operation that is about to begin.

        held: owns the memory that the operation uses. on_end, finish: as in `Engine.submit` and `Engine.run_inline`.
        """
        self.held = held
        self.name = name
        self.since = time.monotonic()
        self.ended = False  # and its caller may know
        self.error: BaseException | None = None
        self._on_end, self._finish = on_end, finish
        self._telling = threading.Lock()
        self._untold = threading.Lock()
        self._untold.acquire()

    def tell(self, error: BaseException | None) -> None:
        """Notify the caller, unless another thread has. May be called again after an interrupt."""
        self.ended = True
        with self._telling:
            if self._untold.locked():
                if isinstance(self.held, Operation):
                    self.held.finish(error)
                if error is None and self._finish is not None:
                    error = error_of(self._finish)
                self.error = error
                if self._on_end is not None:
                    self._on_end(error)
                self._untold.release()

    def forget(self) -> None:
        """Let no thread notify the caller any more; wait for one that is just doing so."""
        with self._telling:
            if self._untold.locked():
                self._untold.release()

    def wait(self) -> None:
        """Wait until the caller has been notified."""
        with self._untold:
            pass


class _PreparedRequest(Prepared):
    def __init__(self, request: c.Request, name: str) -> None:
        self.name = name
        self.request = request  # keeps the strings alive that its copies point to
        self.address: int = request.data
        self.frames = [(request, ctypes.c_int(), c.Error(ctypes.sizeof(c.Error)))]
        """Arguments of calls into C that no call uses now. A signal handler may need another set within a call."""

    def new_frame(self) -> tuple[c.Request, ctypes.c_int, c.Error]:
        return c.Request.from_buffer_copy(self.request), ctypes.c_int(), c.Error.make()


class NativeEngine(Engine):
    """The engine in C. It takes over the sockets of a transport that `link_of` knows, and closes them in the end."""

    def __init__(
        self, transport: Transport | SharedTransport, membership: Membership, *, switch: str, name: str = "p4reduce"
    ) -> None:
        """Open the C engine and start the thread.

        switch: the switch's address, for error messages. name: the threads' name.
        """
        super().__init__(name)
        self._name = name
        self._slots, self._threads = membership.slots, membership.threads
        self._transport = transport
        self._library = library()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._following: list[threading.Thread] = []  # one for each `hold`; only the last may still run
        self._under_way: dict[int, _UnderWay] = {}  # by number, oldest first
        self._ended_at = 0.0  # when the last operation ended
        self._given: BaseException | None = None  # the first failure from outside
        self._failure: BaseException | None = None
        error = c.Error.make()
        handle = self._open(membership, switch, name, error)
        if not handle:
            raise to_exception(error)
        self._handle = ctypes.c_void_p(handle)
        self._finalizer = weakref.finalize(self, _free, self._library, self._handle, self._pid)
        self._thread = threading.Thread(target=self._tell, name=f"{name} ends", daemon=True)
        self._thread.start()

    def _open(self, membership: Membership, switch: str, name: str, error: c.Error) -> int | None:
        """Return the handle of a new C engine, or None with the cause in `error`."""
        options = self._options(switch, name)
        if more_jobs := packed(membership.more_jobs):
            options.threads = membership.threads
            options.more_jobs = _words(more_jobs)
        handle: int | None = self._library.p4reduce_open(to_c(membership), options, error)
        return handle

    def _options(self, switch: str, name: str) -> c.Options:
        """Return the options of an engine that uses the transport's sockets."""
        link = link_of(self._transport)
        if link is None:
            raise ValueError(
                f"transport is a {type(self._transport).__name__}: accepted are UdpTransport, RawTransport, a "
                "StripedTransport of UdpTransports, and a SharedTransport of these"
            )
        first, *more = link.sockets
        return c.Options.make(
            link=link.kind,
            socket=first,
            headers=link.headers,
            more_sockets=c.array_of(ctypes.c_int32, len(more))(*more) if more else None,
            more_count=len(more),
            aggregator_jobs=_words(packed(link.jobs)),
            spares=link.spares,
            switch_address=switch.encode(),
            local_address=self._transport.local_address[0].encode(),
            thread_name=name.encode()[:15],
        )

    @property
    def failure(self) -> BaseException | None:
        if self._failure is None and os.getpid() == self._pid:  # after a fork, the library's locks may stay locked
            error = c.Error(ctypes.sizeof(c.Error))
            if self._library.p4reduce_failure(self._handle, error) != c.OK:
                with self._lock:
                    if self._failure is None:
                        self._failure = (self._is_given(error) and self._given) or to_exception(error)
        return self._failure

    def _is_given(self, error: c.Error) -> bool:
        kinds = {c.ABORTED: JobAborted, c.MISMATCH: MismatchError, c.FAILED: Exception, c.CLOSED: Exception}
        return isinstance(self._given, kinds.get(error.status, ()))

    @property
    def stats(self) -> Stats:
        return to_stats(self._stats())

    @property
    def seconds(self) -> float:
        return self._stats().seconds

    @property
    def busy(self) -> bool:
        untold = [number for number, operation in list(self._under_way.items()) if not operation.ended]
        # An operation whose wait was interrupted may have ended without a notification.
        return any(self._library.p4reduce_await(self._handle, number, 0.0, c.Error.make()) == 0 for number in untold)

    def submit(self, operation: Operation, *, name: str, timeout: float, on_end: OnEnd) -> int | None:
        return self.start(self.prepare(operation, name), operation, timeout=timeout, on_end=on_end)

    def start(self, prepared: Prepared, held: object, *, timeout: float, on_end: OnEnd, address: int = 0) -> int | None:
        assert isinstance(prepared, _PreparedRequest)
        self.check()
        number, frame = next(self._numbers), prepared.frames.pop() if prepared.frames else prepared.new_frame()
        request, _, error = frame
        request.data, request.timeout, request.context = address or prepared.address, timeout, number
        try:
            self._under_way[number] = _UnderWay(held, prepared.name, on_end)
            status = self._library.p4reduce_submit(self._handle, request, None, error)
        except BaseException:
            self._interrupted(number)
            raise
        if status != c.OK:
            self._refused(number, error)
        prepared.frames.append(frame)
        return number if status == c.OK else None

    def settle(self) -> None:
        for number in list(self._under_way):
            self.wait(number)

    def prepare(self, operation: Operation, name: str) -> Prepared:
        return _PreparedRequest(request_of(operation, name.encode()), name)

    def run_inline(
        self,
        prepared: Prepared,
        held: object,
        timeout: float,
        finish: Callable[[], None] | None = None,
        address: int = 0,
    ) -> BaseException | None:
        assert isinstance(prepared, _PreparedRequest)
        if os.getpid() != self._pid or self._refusal is not None:
            self.check()
        number = next(self._numbers)
        frame = prepared.frames.pop() if prepared.frames else prepared.new_frame()
        request, ended, error = frame
        request.data, request.timeout, request.context = address or prepared.address, timeout, number
        one = _UnderWay(held, prepared.name, None, finish)
        try:
            self._under_way[number] = one
            status = self._library.p4reduce_run(self._handle, request, _SLICE_S, ended, error)
            if status == c.OK and ended.value:
                if error.status == c.OK and finish is None:
                    self._ended_at = time.monotonic()
                    self._under_way.pop(number, None)
                    self._library.p4reduce_forget(self._handle, number)
                    prepared.frames.append(frame)
                    return None
                self._waited(number, error)
            elif status == c.OK:
                self.wait(number)
            if status == c.OK:
                one.wait()  # the engine's thread may have seen the end first, and be notifying now
        except BaseException as left_by:
            in_spite_of_signals(partial(self._leave, number, prepared.name, left_by), base.LEAVE_TIMEOUT_S)
            raise
        if status != c.OK:
            self._refused(number, error)
        prepared.frames.append(frame)
        return one.error

    def wait(self, number: int, timeout: float | None = None) -> None:
        self._check_process()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        error = c.Error.make()
        left = deadline - time.monotonic()
        # C does not hear of signals. Python's main thread handles them between two calls.
        while (
            ended := self._library.p4reduce_await(self._handle, number, max(0.0, min(left, _SLICE_S)), error)
        ) == 0 and left > 0:
            left = deadline - time.monotonic()
        if ended > 0:
            self._waited(number, error)

    def _interrupted(self, number: int) -> bool:
        """Clean up after an interrupt of the call that begins the operation, and return whether it is in flight.

        If the operation has ended, its caller is notified. If it has not begun, it is forgotten, since it will not end.
        """
        error = c.Error.make()
        ended = self._library.p4reduce_await(self._handle, number, 0.0, error)
        if ended > 0:
            self._waited(number, error)
        elif ended < 0 and (one := self._under_way.pop(number, None)) is not None:
            one.forget()
        return bool(ended == 0)

    def _leave(self, number: int, name: str, error: BaseException) -> None:
        if self._interrupted(number):
            self.leave(name, error)

    def carries(self, held: object) -> bool:
        return any(one.held is held for one in list(self._under_way.values()))

    def _await_ends(self, deadline: float) -> None:
        for number in list(self._under_way):
            self.wait(number, max(0.0, deadline - time.monotonic()))
        super()._await_ends(deadline)

    def _refused(self, number: int, error: c.Error) -> None:
        """End an operation that did not start. A ValueError is raised on all ranks alike, so the job goes on."""
        under_way = self._under_way.pop(number)
        self.check()
        refused = to_exception(error)
        if isinstance(refused, ValueError):  # on all ranks alike: no failure of the job
            refused = OperationRefused(str(refused))
        else:
            self.fail(refused)
        under_way.tell(refused)

    def _waited(self, number: int, error: c.Error) -> None:
        """Complete an operation in the thread that waited for it. After an interrupt, the engine's thread does it."""
        with float_mode.DefaultMode():
            self._complete(number, error)
        self._library.p4reduce_forget(self._handle, number)

    def fail(self, error: BaseException) -> None:
        self._end_with(error)
        self.on_failure(error)

    def _end_with(self, error: BaseException) -> None:
        with self._lock:
            if self._given is None:
                self._given = without_frames(error)
        message = str(error).encode(errors="replace")
        if isinstance(error, (JobAborted, MismatchError)):  # not this rank's failure, so not to be reported as one
            rank = error.rank if isinstance(error, JobAborted) else None
            status = c.ABORTED if isinstance(error, JobAborted) else c.MISMATCH
            self._library.p4reduce_abort(self._handle, status, -1 if rank is None else rank, message)
        else:
            self._library.p4reduce_fail(self._handle, message)

    def counted(self, half: int, seq: int, error: BaseException) -> None:
        self._library.p4reduce_counted(self._handle, half, seq, str(error).encode(errors="replace"))

    def hold(self, operations: int, tell: Tell) -> None:
        hold = self._library.p4reduce_hold(self._handle, operations)
        if hold:
            thread = threading.Thread(target=self._follow, args=(hold, tell), name=f"{self._name} hold", daemon=True)
            thread.start()
            self._following = [*(one for one in self._following if one.is_alive()), thread]

    def go_on(self, slots: int, first_seq: int) -> None:
        self._library.p4reduce_go_on(self._handle, slots, first_seq)

    def _follow(self, hold: int, tell: Tell) -> None:
        """Report the progress of a pausing engine to `tell`, in a thread of its own, until the pause ends."""
        held = c.Held.make()
        while (news := self._library.p4reduce_await_held(self._handle, hold, held, _HOLD_SLICE_S)) >= 0:
            if news:
                tell(held.operations, bool(held.quiet), held.first_seq)

    def suspend(self, aggregator: int) -> list[int] | None:
        rounds = c.array_of(ctypes.c_uint32, self._slots)()
        count = self._library.p4reduce_suspend(self._handle, aggregator, rounds, self._slots)
        return None if count < 0 else list(rounds[:count])

    def move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int]) -> None:
        if len(jobs) != self._threads:
            self.fail(base.wrong_move(f"jobs are {len(jobs)}: accepted are {self._threads}, one for each thread"))
            return
        self._library.p4reduce_move(self._handle, aggregator, via, _words(jobs), _words(rounds), len(rounds))

    def take_most_slots(self) -> int:
        most: int = self._library.p4reduce_take_most_slots(self._handle)
        return most

    def close(self, error: BaseException) -> None:
        if not self.in_own_process():
            return  # this process has neither the threads nor a right to end its parent's
        self._end_with(error)
        self._library.p4reduce_close(self._handle)
        self._transport.close()
        for thread in (self._thread, *self._following):
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT_S)
        self.continuations.close(CLOSE_TIMEOUT_S)
        self._forget_listeners()

    def progress(self) -> str:
        return self._text(self._library.p4reduce_progress)

    def awaited(self) -> tuple[int, ...]:
        self._check_process()
        awaited = c.Ranks()
        self._library.p4reduce_awaited(self._handle, awaited)
        return ranks(list(awaited))

    def _unanswered(self) -> int | None:
        half: int = self._library.p4reduce_unanswered(self._handle)
        return None if half < 0 else half

    def link(self) -> str:
        """Return a description of how packets are sent: "UDP, GSO, GRO"."""
        return self._text(self._library.p4reduce_describe)

    def _text(self, function: Any) -> str:
        self._check_process()
        text = c.array_of(ctypes.c_char, _TEXT_BYTES)()
        function(self._handle, text, _TEXT_BYTES)
        said: bytes = text.value
        return said.decode(errors="replace")

    def _stats(self) -> c.Stats:
        self._check_process()
        stats = c.Stats.make()
        self._library.p4reduce_get_stats(self._handle, stats)
        return stats

    def _tell(self) -> None:
        """Notify callers of their operations' ends, until the engine is closed and all are notified."""
        float_mode.set_default()
        error = c.Error.make()
        while True:
            timeout = min(base.REMIND_AFTER_S / 3, base.LOOK_S)
            number = self._library.p4reduce_next_ended(self._handle, timeout, error)
            if number:
                self._guarded(partial(self._complete, number, error))
            elif error.status == c.TIMEOUT:
                self._guarded(self._look_after_oldest)
            else:
                return

    def _look_after_oldest(self) -> None:
        for oldest in list(self._under_way.values())[:1]:
            now = time.monotonic()
            self._remind(oldest.name, max(oldest.since, self._ended_at), now)
            self._ask(now)

    def _complete(self, number: int, error: c.Error) -> None:
        """Notify the caller of an operation that has ended, well or with an error, unless that is done already."""
        ended = self._under_way.get(number)
        if ended is not None:
            self._ended_at = time.monotonic()
            failure = self.failure if error.status != c.OK else None
            if failure is not None:
                self.on_failure(failure)
            ended.tell(failure)
            self._under_way.pop(number, None)

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run code that may call the user's. An error fails the job, but does not end this thread."""
        try:
            step()
        except Exception as caught:
            self._fail_thread(caught)


def _free(c_library: Any, handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:  # a forked process has no engine
        c_library.p4reduce_free(handle)
