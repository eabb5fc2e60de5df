# SPDX-License-Identifier: Apache-2.0
"""The machine under the code, replaced while a world runs: time, chance, threads, sockets, gRPC.

The code itself is unchanged. Each name is replaced where the code looks it up, and restored at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import grpc
import grpc.aio

from p4reduce import settings, transport
from p4reduce.control import diagnostics, report_schedule
from p4reduce.join import joining
from p4reduce_controller.standby import leader_election
from tests.simulation import disk, etcd, program, rpc, threads, udp, variations
from tests.simulation.network import Network
from tests.simulation.world import World

_CLOCKS = (time.monotonic, time.time)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Replace the machine by that of the world."""
    net: Network = world.net
    random = world.random
    threads.world = world

    def monotonic() -> float:
        return world.now

    def channel(address: str, options: Any = None) -> Any:
        del options
        return rpc.SyncChannel(net, address)

    def aio_channel(address: str, options: Any = None) -> Any:
        del options
        return rpc.AioChannel(net, address)

    def server(interceptors: Any = (), options: Any = ()) -> Any:
        times = dict(options)
        keepalive = sum(times.get(f"grpc.keepalive_{one}_ms", 30_000) for one in ("time", "timeout")) / 1000
        return rpc.Server(net, interceptors, keepalive)

    real_close = os.close

    def close(descriptor: int) -> None:
        (threads.close if threads.is_simulated(descriptor) else real_close)(descriptor)

    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", monotonic),
        (time, "time", world.wall),
        (time, "time_ns", lambda: int(world.wall() * 1e9)),
        (time, "sleep", threads.sleep),
        (secrets, "randbits", random.getrandbits),
        (secrets, "randbelow", random.randrange),
        (secrets, "token_hex", lambda size=32: random.randbytes(size).hex()),
        (secrets, "token_bytes", lambda size=32: random.randbytes(size)),
        (threading, "Thread", threads.Thread),
        (threading, "Lock", threads.Lock),
        (threading, "RLock", threads.RLock),
        (threading, "Condition", threads.Condition),
        (threading, "Event", threads.Event),
        (threading, "current_thread", threads.current_thread),
        (threading, "get_ident", threads.get_ident),
        (queue, "SimpleQueue", threads.SimpleQueue),
        (select, "epoll", threads.Epoll),
        (select, "poll", threads.Poll),
        (os, "eventfd", threads.eventfd),
        (os, "eventfd_write", threads.eventfd_write),
        (os, "eventfd_read", threads.eventfd_read),
        (os, "close", close),
        (os, "getpid", lambda: world.current.number if world.current is not None else 0),
        (socket, "gethostname", lambda: world.current.host if world.current is not None else ""),
        (grpc, "insecure_channel", channel),
        (grpc.aio, "insecure_channel", aio_channel),
        (grpc.aio, "server", server),
        (diagnostics, "cannot_listen", lambda address: "in use" if address in net.listeners else ""),
        (diagnostics, "speaks_tls", lambda _: False),
        (leader_election, "Etcd", etcd.Etcd),
        (report_schedule, "schedule", _Schedules()),
        (joining, "_members", _Members()),
        (settings, "queue", lambda: threads.here().local["queue"]),
        (joining, "rate_toward", lambda *_: 0),
        *disk.replaced(),
        *program.replaced(),
        *variations.replaced(),
    ]
    with contextlib.ExitStack() as undo:
        undo.callback(threads.forget)
        for function, defaults in _with_clocks():
            undo.callback(setattr, function, "__defaults__", defaults)
            function.__defaults__ = tuple(
                monotonic if one is _CLOCKS[0] else world.wall if one is _CLOCKS[1] else one for one in defaults
            )
        for owner, name, value in replaced:
            undo.enter_context(mock.patch.object(owner, name, value))
        undo.enter_context(mock.patch.dict(os.environ, {"P4REDUCE_BACKEND": "python"}))
        undo.enter_context(mock.patch.dict(transport._CLASSES, {"udp": (udp.__name__, udp.UdpTransport.__name__)}))
        asyncio.set_event_loop(None)
        yield


def _with_clocks() -> list[tuple[Any, Any]]:
    """Return the functions whose default arguments contain a clock, and their defaults."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("p4reduce", "p4reduce_controller"):
            continue
        for one in list(vars(module).values()):
            function = one.__init__ if isinstance(one, type) else one
            defaults = getattr(function, "__defaults__", None)
            is_new = all(function is not other for other, _ in found)
            if is_new and any(default is clock for default in defaults or () for clock in _CLOCKS):
                found.append((function, defaults))
    return found


class _Schedules:
    """The schedule of reports of the process that runs."""

    def __getattr__(self, name: str) -> Any:
        local = threads.here().local
        if "schedule" not in local:
            local["schedule"] = report_schedule.ReportSchedule()
        return getattr(local["schedule"], name)


class _Members(dict[Any, int]):
    """The counts of members in the process that runs."""

    def __getitem__(self, job: Any) -> int:
        return self.get((threads.here().name, job), 0)

    def __setitem__(self, job: Any, count: int) -> None:
        super().__setitem__((threads.here().name, job), count)

    def pop(self, job: Any, *_: Any) -> int:  # type: ignore[override]
        return super().pop((threads.here().name, job), 0)
