# SPDX-License-Identifier: Apache-2.0
"""The C engine: a thread of C carries operations, and one of Python tells their callers how they ended."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
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
_PATIENCE_S = 0.05  # of a wait in C, so that an interrupt is answered promptly
_HOLD_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Link:
    """How C carries what a transport carries. `sockets`: one for each aggregator, thread after thread. `headers`: of
    its frames."""

    kind: int
    sockets: tuple[int, ...]
    headers: bytes | None = None


def link_of(transport: Transport | SharedTransport) -> Link | None:
    """Return the link for `transport`; None if C does not have it."""
    if isinstance(transport, SharedTransport):
        links = [link_of(part) for part in transport.parts]
        sockets = tuple(socket for link in links if link is not None for socket in link.sockets)
        return Link(c.LINK_UDP, sockets) if all(link and link.kind == c.LINK_UDP for link in links) else None
    if type(transport) is UdpTransport:
        return Link(c.LINK_UDP, (transport.fileno(),))
    if type(transport) is RawTransport:
        return Link(c.LINK_PACKET, (transport.fileno(),), transport.headers_without_lengths())
    if type(transport) is StripedTransport and all(type(part) is UdpTransport for part in transport.parts):
        return Link(c.LINK_UDP, tuple(part.fileno() for part in transport.parts))
    return None


def packed(more_jobs: Iterable[tuple[int, int]]) -> list[int]:
    """Job numbers and generations, as C takes them."""
    return [job << 16 | generation for job, generation in more_jobs]


class _UnderWay:
    """An operation until its caller has been told of its end: once, by a thread that waits for it or by ours."""

    def __init__(
        self, held: object, name: str, on_end: OnEnd | None = None, finish: Callable[[], None] | None = None
    ) -> None:
        """held: owns the memory that the operation uses. on_end: of `Engine.submit`; finish: of `Engine.run_inline`."""
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
        """May be called again, where it was interrupted."""
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
        """Nobody is told any more, once a thread has that tells now."""
        with self._telling:
            if self._untold.locked():
                self._untold.release()

    def wait(self) -> None:
        """Return when the caller has been told."""
        with self._untold:
            pass


class _PreparedRequest(Prepared):
    def __init__(self, request: c.Request, name: str) -> None:
        self.name = name
        self.request = request  # keeps the texts that its copies point to
        self.address: int = request.data
        self.frames = [(request, ctypes.c_int(), c.Error(ctypes.sizeof(c.Error)))]
        """What calls into C take, while no call uses it: a signal's handler may call again, within a call."""

    def new_frame(self) -> tuple[c.Request, ctypes.c_int, c.Error]:
        return c.Request.from_buffer_copy(self.request), ctypes.c_int(), c.Error.make()


class NativeEngine(Engine):
    """Takes over the socket of a transport that `link_of` knows, and closes it in the end."""

    def __init__(
        self, transport: Transport | SharedTransport, membership: Membership, *, switch: str, name: str = "p4reduce"
    ) -> None:
        """`switch`: its address, for error messages. `name`: of the threads."""
        super().__init__(name)
        self._name = name
        self._transport = transport
        self._library = library()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._following: list[threading.Thread] = []  # of holds, of which the last may go on
        self._under_way: dict[int, _UnderWay] = {}  # oldest first
        self._ended_at = 0.0  # the latest
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
        """Return the C engine, or None and what is wrong."""
        options = self._options(switch, name)
        if more_jobs := packed(membership.more_jobs):
            options.threads = membership.threads
            options.more_jobs = c.array_of(ctypes.c_uint32, len(more_jobs))(*more_jobs)
        handle: int | None = self._library.p4reduce_open(to_c(membership), options, error)
        return handle

    def _options(self, switch: str, name: str) -> c.Options:
        """Of an engine with the transport's network."""
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
            switch_address=switch.encode(),
            local_address=self._transport.local_address[0].encode(),
            thread_name=name.encode()[:15],
        )

    @property
    def failure(self) -> BaseException | None:
        if self._failure is None and os.getpid() == self._pid:  # in another, the library's locks may be taken for ever
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
        # One whose wait was interrupted may have ended, though nobody was told.
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
        if os.getpid() != self._pid:
            self._check_process()
        number = next(self._numbers)
        frame = prepared.frames.pop() if prepared.frames else prepared.new_frame()
        request, ended, error = frame
        request.data, request.timeout, request.context = address or prepared.address, timeout, number
        one = _UnderWay(held, prepared.name, None, finish)
        try:
            self._under_way[number] = one
            status = self._library.p4reduce_run(self._handle, request, _PATIENCE_S, ended, error)
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
                one.wait()
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
        # C does not hear of signals, which Python's main thread answers between two calls.
        while (
            ended := self._library.p4reduce_await(self._handle, number, max(0.0, min(left, _PATIENCE_S)), error)
        ) == 0 and left > 0:
            left = deadline - time.monotonic()
        if ended > 0:
            self._waited(number, error)

    def _interrupted(self, number: int) -> bool:
        """Return the call that begins the operation was. Tells its caller where it has ended; forgets it where it has
        not begun, of which nobody will tell. Returns whether it is under way."""
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
        """The operation did not start."""
        under_way = self._under_way.pop(number)
        self.check()
        refused = to_exception(error)
        if isinstance(refused, ValueError):  # on all ranks alike: no failure of the job
            refused = OperationRefused(str(refused))
        else:
            self.fail(refused)
        under_way.tell(refused)

    def _waited(self, number: int, error: c.Error) -> None:
        """For a thread that waited: the operation has ended. If this is interrupted, our thread comes to it."""
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
        if isinstance(error, (JobAborted, MismatchError)):  # no failure of this rank, and not to be told as one
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
        """Tells how far the engine has come, in a thread of its own, while it holds."""
        held = c.Held.make()
        while (news := self._library.p4reduce_await_held(self._handle, hold, held, _HOLD_PATIENCE_S)) >= 0:
            if news:
                tell(held.operations, bool(held.quiet), held.first_seq)

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
        """How packets travel: "UDP, GSO, GRO"."""
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
        """Tells callers of their operations' ends, until the engine is closed and all were told."""
        float_mode.set_default()
        error = c.Error.make()
        while True:
            patience = min(base.REMIND_AFTER_S / 3, base.SILENCE_S)
            number = self._library.p4reduce_next_ended(self._handle, patience, error)
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
        """The operation is done, well or with an error: its result is in its data. Nothing where its caller knows."""
        ended = self._under_way.get(number)
        if ended is not None:
            self._ended_at = time.monotonic()
            failure = self.failure if error.status != c.OK else None
            if failure is not None:
                self.on_failure(failure)
            ended.tell(failure)
            self._under_way.pop(number, None)

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run code that may reach the user's, in this thread, which an error there does not end: it fails the job."""
        try:
            step()
        except Exception as caught:
            self._fail_thread(caught)


def _free(c_library: Any, handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:  # a forked process has no engine
        c_library.p4reduce_free(handle)
