# SPDX-License-Identifier: Apache-2.0
"""Virtual time: processes with event loops of their own, of which one runs at a time, in an order from one seed.

A `World` has the clock and the events to come. A `Process` stands for one operating system process: its loop is
asyncio's own, but for the clock and the selector. The world lets one process after the other run what is ready, and
chooses among them by its random numbers. If none is ready, the clock goes to the next event or timer. So a run depends
on nothing but its seed, and idle time costs nothing.

A process can be paused, as by SIGSTOP, and killed: then it never runs again, and its objects stay until `World.close`,
so that no destructor runs in the midst of a run.

Blocking code runs in greenlets, each of which stands for a thread: see `threads`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

EPOCH = 1_700_000_000.0  # seconds since 1970 when a world begins
ROUNDS_TO_CLOSE = 10
MOST_AT_ONCE = 200_000  # turns without time passing, from which on the world is stuck


class Violation(AssertionError):
    """An invariant does not hold."""


class _Task(asyncio.Task[Any]):
    """A task with a hash that does not depend on its address, since asyncio keeps tasks in sets."""

    def __init__(self, coroutine: Any, *, loop: Loop, **options: Any) -> None:
        self.number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """A future with such a hash."""

    def __init__(self, *, loop: Loop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Selector:
    """A selector that never waits: the world knows what comes next."""

    def select(self, _: float | None) -> list[Any]:
        return []


class Loop(asyncio.BaseEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._selector = _Selector()
        self.numbers = process.world.numbers
        self._clock_resolution = 1e-9
        self.set_task_factory(lambda _, coroutine, **options: _Task(coroutine, loop=self, **options))

    def time(self) -> float:
        return self._process.world.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def next_time(self) -> float:
        """Return when the loop has something to do."""
        if self._ready:  # type: ignore[attr-defined]
            return self.time()
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        return timers[0]._when if timers else float("inf")

    def _process_events(self, _: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def run_in_executor(self, _: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run the function at once: in virtual time it takes none."""
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive and "exception" in context and not isinstance(context["exception"], GeneratorExit):
            self._process.world.note(self._process.name, f"{context['message']}: {context['exception']!r}")

    async def create_connection(self, factory: Any, host: str = "", port: int = 0, **_: Any) -> Any:  # type: ignore[override]
        """Connect to a listener of the simulated network, of which nothing but the connection itself is simulated."""
        return await self._process.world.net.connect(self._process, factory, f"{host}:{port}")


class Process:
    """One process on one host. `world.net` carries what it sends."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.stalled_until = 0.0  # by a slow disk
        self.clock_offset = 0.0  # of the time of day
        self.on_kill: list[Callable[[], None]] = []
        self.threads: list[Any] = []
        self.local: dict[str, Any] = {}  # what would be global in a process of its own
        self.number = len(world.processes) + len(world.dead) + 1
        self.loop = Loop(self)
        world.processes.append(self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Start a task."""
        return self.loop.create_task(work)

    def soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call the callback in this process, if it lives."""
        if self.alive:
            self.loop.call_soon(callback, *arguments)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.world.processes.remove(self)
            self.world.dead.append(self)
            for callback in list(self.on_kill):
                callback()

    def close(self) -> None:
        """End all tasks, at the end of the world. Nothing comes of what they still do."""
        loop = self.loop
        for _ in range(ROUNDS_TO_CLOSE):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in sorted(tasks, key=hash):
                task.cancel()
            for _ in range(ROUNDS_TO_CLOSE):
                self.world.run_process(self)
        loop.close()


class World:
    """The clock, the events and the processes. `net` is set by the network."""

    def __init__(self, seed: int, tail: int = 400) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 1000.0
        self.net: Any = None
        self.numbers = itertools.count(1)
        self.folder = "no folder"  # whose name notes leave out, since it differs from run to run
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.current: Process | None = None
        self.steps = 0
        self.over = False
        self.failure: BaseException | None = None  # of a thread
        self.checks: list[Callable[[], None]] = []  # invariants, checked after every step
        self.tail: deque[str] = deque(maxlen=tail)
        self.echo: Callable[[str], None] | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    @property
    def digest(self) -> str:
        """A digest of all notes, steps and random numbers so far: equal seeds have equal ones."""
        digest = self._digest.copy()
        digest.update(repr((self.steps, self.random.getstate())).encode())
        return digest.hexdigest()

    def note(self, who: str, what: str) -> None:
        line = f"{self.now - 1000:.6f} {who}: {what.replace(self.folder, 'FOLDER')}"
        self._digest.update(line.encode())
        self.tail.append(line)
        if self.echo is not None:
            self.echo(line)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self.numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.at(self.now + seconds, callback)

    def wall(self) -> float:
        """Return the time of day, by the clock of the process that runs."""
        return EPOCH + self.now + (self.current.clock_offset if self.current is not None else 0.0)

    def step(self, end: float) -> bool:
        """Let one process run what is ready, or go to the next event. Return False at the time `end`."""
        due, nearest = [], float("inf")
        for process in self.processes:
            if process.paused:
                continue
            when = max(process.loop.next_time(), process.stalled_until)
            if when <= self.now:
                due.append(process)
            elif when < nearest:
                nearest = when
        if self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        elif due:
            self.run_process(due[0] if len(due) == 1 else self.random.choice(due))
        else:
            when = min(nearest, self._events[0][0]) if self._events else nearest
            if when > end:
                self.now = end
                return False
            self.now, self._at_once = when, 0
            return True
        self.steps += 1
        self._at_once += 1
        if self._at_once > MOST_AT_ONCE:
            raise Violation(f"time stands still: {due}")
        if self.failure is not None:
            raise self.failure
        for check in self.checks:
            check()
        return True

    _at_once = 0

    def run_process(self, process: Process) -> None:
        """Let the process run what is ready."""
        self.current = process
        before = events._get_running_loop()
        events._set_running_loop(process.loop)
        try:
            process.loop._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(before)
            self.current = None

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for so many seconds, or until the condition holds. Return whether it does."""
        end = self.now + seconds
        while not until():
            if not self.step(end):
                return until()
        return True
