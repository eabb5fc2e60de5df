# SPDX-License-Identifier: Apache-2.0
"""Ranks of many jobs, as threads or as forked processes.

`chaos` runs this with the path of a FIFO and a kind: "threads" cost least, "processes" can be killed. Each line from
the FIFO describes a rank to start. Each printed line is an event of one rank: its process, that it is ready, its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from p4reduce import Communicator
from p4reduce.backends import backend
from p4reduce.control.channel import open_channel
from p4reduce_bench.allreduce.grid import Case
from tests.chaos.soak_rank import Reduction, WrongSum

NUMEL = 1 << 13
LONG_S = 0.3  # gaps between results that are worth telling
MOST_TOLD = 20
MOST_THREADS = 256


def say(**what: Any) -> None:
    """Print an event with a single write, so that lines of several ranks do not mix."""
    os.write(1, f"{json.dumps(what)}\n".encode())


def run(task: dict[str, Any]) -> None:
    """Run one rank from its join to its end. Never raises."""
    who = {"job": task["job"], "rank": task["rank"]}
    phase, times = "join", []
    began = time.monotonic()
    admitted: list[float] = []
    try:
        reductions = [
            Reduction.of(Case(task["world_size"], NUMEL, dtype, density, "random", "block", task["seed"]), task["rank"])
            for dtype, density in (("float32", 0.3), ("int32", 1.0))
        ]
        open_channel(task["controller"].partition(",")[0], None).close()  # a process that is there has its gRPC
        began = time.monotonic()
        with Communicator(
            task["controller"],
            job=task["job"],
            rank=task["rank"],
            world_size=task["world_size"],
            slots=task["slots"],
            token=task["token"],
            timeout=task["timeout"],
            local="off",
            on_admitted=lambda: admitted.append(time.monotonic()),
        ) as communicator:
            say(**who, event="ready", began=began, admitted=admitted[0], at=time.monotonic(), cpu=time.process_time())
            phase = "run"
            for turn in range(task["turns"]):
                reduction = reductions[turn % 2]
                communicator.allreduce(reduction.prepare(turn))
                reduction.check(turn)
                times.append(time.monotonic())
                time.sleep(task["pace"])
            phase = "leave"
        say(
            **who,
            event="done",
            cpu=time.process_time(),
            turns=len(times),
            typical=_median(times),
            gaps=_long_gaps(times),
        )
    except WrongSum as error:
        say(**who, event="wrong", text=str(error))
    except BaseException as error:
        say(
            **who, event="error", phase=phase, kind=type(error).__name__, text=str(error)[:1500], began=began,
            at=time.monotonic(), blamed=getattr(error, "rank", None), gaps=_long_gaps(times),
        )  # fmt: skip


def _median(times: list[float]) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


def _long_gaps(times: list[float]) -> list[tuple[float, float]]:
    """Return the long gaps between two results: the time at which each begins, and its seconds."""
    return [(before, after - before) for before, after in pairwise(times) if after - before > LONG_S][:MOST_TOLD]


def serve(fifo: str, kind: str) -> None:
    """Run ranks until the FIFO has no writer any more and all ranks have ended."""
    backend()  # what all ranks need is loaded once
    if kind == "threads":
        with open(fifo) as tasks, ThreadPoolExecutor(MOST_THREADS) as pool:
            for line in tasks:
                pool.submit(_run_thread, json.loads(line))
        return
    running: dict[int, dict[str, Any]] = {}
    reader = os.open(fifo, os.O_RDONLY)
    os.set_blocking(reader, False)
    rest, more = b"", True
    while more or running:
        time.sleep(0.01)
        with contextlib.suppress(BlockingIOError):
            data = os.read(reader, 1 << 16)
            more = bool(data)
            *whole, rest = (rest + data).split(b"\n")
            for each in whole:
                task = json.loads(each)
                running[_fork(task)] = task
        _reap(running)


def _run_thread(task: dict[str, Any]) -> None:
    say(job=task["job"], rank=task["rank"], event="started", pid=0)
    run(task)
    say(job=task["job"], rank=task["rank"], event="ended", code=0)


def _fork(task: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run(task)
        finally:
            os._exit(0)
    say(job=task["job"], rank=task["rank"], event="started", pid=pid)
    return pid


def _reap(running: dict[int, dict[str, Any]]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            task = running.pop(pid)
            say(job=task["job"], rank=task["rank"], event="ended", code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve(*sys.argv[1:])
