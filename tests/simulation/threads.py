# SPDX-License-Identifier: Apache-2.0
"""Threads in virtual time: what `threading`, `queue`, `select`, `time` and `os` offer to blocking code.

Each thread is a greenlet of the process that started it. It runs until it waits for something; then the process's loop
goes on, and a callback of this loop lets it run again.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import greenlet

from tests.simulation.world import Process, World

world: World = None  # type: ignore[assignment]
"""The world that runs now. `environment.simulated` sets it."""

_LEAST_DESCRIPTOR = 1_000_000  # above those of the kernel
_by_descriptor: dict[int, Any] = {}


def here() -> Process:
    """Return the process that runs."""
    assert world.current is not None, "blocking code runs outside of a process"
    return world.current


class Thread:
    """A thread, as `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "",
        args: Iterable[Any] = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self.process = here()
        self.ident = next(self.process.world.numbers)
        self.name = name or f"thread {self.ident}"
        self.daemon = daemon
        self._target, self._arguments, self._options = target, args, kwargs or {}
        self._ended = Event()
        self.greenlet = greenlet.greenlet(self._main)
        self.greenlet.thread = self  # type: ignore[attr-defined]

    def start(self) -> None:
        self.process.threads.append(self)
        self.process.loop.call_soon(self.greenlet.switch)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._arguments, **self._options)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def _main(self) -> None:
        try:
            self.run()
        except greenlet.GreenletExit:
            return
        except BaseException as error:
            world.note(self.process.name, f"the thread {self.name!r} failed: {error!r}")
        self.process.threads.remove(self)
        self._ended.set()


class _Main:
    """The thread of what runs in no thread of its own."""

    name, ident, daemon = "MainThread", 0, False


_main = _Main()


def current_thread() -> Any:
    return getattr(greenlet.getcurrent(), "thread", _main)


def get_ident() -> int:
    return int(current_thread().ident)


class Waiter:
    """A place at which one thread waits, until `wake` or a timeout."""

    def __init__(self) -> None:
        self.thread = current_thread()
        assert self.thread is not _main, "only a thread may wait"
        self._woken = False
        self._waits = False
        self._timer: Any = None

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            if self._timer is not None:
                self._timer.cancel()
            if self._waits:
                self.thread.process.soon(self._resume)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, and return whether `wake` was called."""
        if self._woken:
            return True
        loop = self.thread.process.loop
        if timeout is not None and timeout < threading.TIMEOUT_MAX:
            self._timer = loop.call_later(max(0.0, timeout), self._time_out)
        self._waits = True
        while self._waits:
            if world.over:
                raise greenlet.GreenletExit  # otherwise what refers to this thread would never be freed
            self.thread.greenlet.parent.switch()
        return self._woken

    def _time_out(self) -> None:
        if not self._woken:
            self._resume()

    def _resume(self) -> None:
        if self._waits:
            self._waits = False
            self.thread.greenlet.switch()


def sleep(seconds: float) -> None:
    Waiter().wait(seconds)


class Lock:
    """A lock, as `threading.Lock`; with `reentrant`, as `threading.RLock`."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._owner: Any = None
        self._depth = 0
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = current_thread()
        if self._reentrant and self._owner is me:
            self._depth += 1
            return True
        deadline = math.inf if timeout < 0 else world.now + timeout
        while self._owner is not None:
            if not blocking or world.now >= deadline:
                return False
            waiter = Waiter()
            self._waiters.append(waiter)
            if not waiter.wait(None if deadline == math.inf else deadline - world.now):
                self._waiters.remove(waiter)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiters:
                self._waiters.popleft().wake()

    def locked(self) -> bool:
        return self._owner is not None

    def _is_owned(self) -> bool:
        return self._owner is current_thread()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def RLock() -> Lock:
    return Lock(reentrant=True)


class Condition:
    """A condition, as `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters: deque[Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._is_owned = self._lock._is_owned

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = Waiter()
        self._waiters.append(waiter)
        depth, self._lock._depth = self._lock._depth, 1
        self._lock.release()
        woken = waiter.wait(timeout)
        if not woken:
            self._waiters.remove(waiter)
        self._lock.acquire()
        self._lock._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = math.inf if timeout is None else world.now + timeout
        while not (result := predicate()):
            if world.now >= deadline:
                break
            self.wait(None if timeout is None else deadline - world.now)
        return result

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._waiters))):
            self._waiters.popleft().wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """An event, as `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[Waiter] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            waiter = Waiter()
            self._waiters.append(waiter)
            waiter.wait(timeout)
        return self._set


class SimpleQueue:
    """A queue, as `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters: deque[Waiter] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiters:
            self._waiters.popleft().wake()

    def get(self) -> Any:
        while not self._items:
            waiter = Waiter()
            self._waiters.append(waiter)
            waiter.wait()
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class Readable:
    """A descriptor that can be polled. `ready` says whether it is readable; `changed` is called when it may be."""

    def __init__(self) -> None:
        self.descriptor = _LEAST_DESCRIPTOR + next(world.numbers)
        _by_descriptor[self.descriptor] = self
        self._pollers: list[Callable[[], None]] = []

    def fileno(self) -> int:
        return self.descriptor

    def ready(self) -> bool:
        raise NotImplementedError

    def changed(self) -> None:
        for poller in list(self._pollers):
            poller()

    def close(self) -> None:
        _by_descriptor.pop(self.descriptor, None)


class _EventFd(Readable):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def ready(self) -> bool:
        return self.count > 0


def eventfd(count: int, _: int = 0) -> int:
    made = _EventFd()
    made.count = count
    return made.descriptor


def eventfd_write(descriptor: int, count: int) -> None:
    found = _by_descriptor[descriptor]
    found.count += count
    found.changed()


def eventfd_read(descriptor: int) -> int:
    found = _by_descriptor[descriptor]
    count, found.count = found.count, 0
    return int(count)


def is_simulated(descriptor: Any) -> bool:
    return isinstance(descriptor, int) and descriptor in _by_descriptor


def close(descriptor: int) -> None:
    _by_descriptor[descriptor].close()


class Epoll(Readable):
    """A set of descriptors, as `select.epoll`, which is itself readable while one of them is."""

    seconds = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._registered: dict[int, Readable] = {}
        self._waiter: Waiter | None = None

    def register(self, descriptor: Any, events: int = select.EPOLLIN) -> None:
        del events
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        found = self._registered[number] = _by_descriptor[number]
        found._pollers.append(self._changed)
        if found.ready():
            self._changed()

    def modify(self, descriptor: Any, events: int) -> None: ...

    def _changed(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()
        self.changed()

    def ready(self) -> bool:
        return any(one.ready() for one in self._registered.values())

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if not self.ready() and timeout != 0:
            self._waiter = Waiter()
            self._waiter.wait(None if timeout is None or timeout < 0 else timeout / self.seconds)
            self._waiter = None
        return [(number, select.EPOLLIN) for number, one in self._registered.items() if one.ready()]

    def close(self) -> None:
        for one in self._registered.values():
            with contextlib.suppress(ValueError):
                one._pollers.remove(self._changed)
        super().close()

    def __enter__(self) -> Epoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Poll(Epoll):
    """The same as `select.poll`, whose timeouts are in milliseconds."""

    seconds = 1000.0


def forget() -> None:
    """Forget all descriptors, at the end of a world."""
    _by_descriptor.clear()
