# SPDX-License-Identifier: Apache-2.0
"""A rank in virtual time: the host library itself, with the engine in Python, as a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.random  # its import takes random numbers, so not in a world

from p4reduce.errors import P4ReduceError
from p4reduce.join.joining import run_job
from p4reduce.join.options import JoinOptions
from p4reduce.protocol import Operation
from tests.simulation import threads
from tests.simulation.world import Process, Violation, World


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job: what its ranks do.

    `values`: how many each allreduce has. `pauses`: seconds before each allreduce.
    `timeout`: seconds for each allreduce. `join_timeout`: seconds for joining.
    `queue`: seconds to wait for slots.
    `tenant`: whose job it is; "" without tenants. `token`: the one with which its ranks join, or "".
    `in_c`: the ranks whose worker is the one in C.
    """

    name: str
    seed: int
    world_size: int
    slots: int
    values: int
    pauses: tuple[float, ...]
    timeout: float
    join_timeout: float
    queue: float
    tenant: str = ""
    token: str = ""
    in_c: frozenset[int] = frozenset()

    def inputs(self, rank: int, number: int) -> Any:
        """Return what a rank contributes to an allreduce. Blocks of it are zero."""
        random = np.random.default_rng((self.seed, rank, number))
        values = random.integers(-(2**20), 2**20, self.values, np.int32)
        values[np.repeat(random.random(self.values // 64 + 1) < 0.5, 64)[: self.values]] = 0
        return values

    def sum(self, number: int) -> Any:
        return np.sum([self.inputs(rank, number) for rank in range(self.world_size)], axis=0, dtype=np.int32)


class Rank:
    """One rank of a job, from its start to its end.

    `stage`: what it does now. `since`: since when.
    `outcome`: "" while it runs, "left" if it has left well, or "failed".
    `error`: the error with which it has failed.
    """

    def __init__(self, world: World, plan: JobPlan, rank: int, host: str, controllers: str) -> None:
        self.world, self.plan, self.rank = world, plan, rank
        self.name = f"{plan.name}.{rank}"
        self.process = Process(world, self.name, host)
        self.stage, self.since = "new", world.now
        self.outcome = ""
        self.error: BaseException | None = None
        self.running: Any = None
        self.fails = False  # whether its program will raise an exception
        self._controllers = controllers
        self.process.local["queue"] = plan.queue
        self.process.local["in_c"] = rank in plan.in_c
        world.current = self.process
        try:
            threads.Thread(target=self._main, name=self.name).start()
        finally:
            world.current = None

    @property
    def lives(self) -> bool:
        return self.process.alive and not self.outcome

    def _enter(self, stage: str) -> None:
        self.stage, self.since = stage, self.world.now
        self.world.note(self.name, stage)

    def _main(self) -> None:
        try:
            self._live()
            self.outcome = "left"
            self._enter("has left")
        except P4ReduceError as error:
            self.outcome, self.error = "failed", error
            self.world.note(self.name, f"failed while {self.stage}: {type(error).__name__}: {error}")
        except threads.greenlet.GreenletExit:
            raise
        except BaseException as error:
            self.outcome, self.error = "failed", error
            self.world.failure = self.world.failure or Violation(f"{self.name}, {self.stage}: {error!r}")
        self.world.after(0.0, self.process.kill)  # its program ends

    def _live(self) -> None:
        plan = self.plan
        self._enter("joining")
        options = JoinOptions(
            controller=self._controllers,
            job=plan.name,
            rank=self.rank,
            world_size=plan.world_size,
            slots=plan.slots,
            token=plan.token or None,
            timeout=plan.join_timeout,
        )
        self.running = run_job(options)
        well = False
        try:
            for number, pause in enumerate(plan.pauses):
                self._enter("computing")
                threads.sleep(pause)
                if self.fails:
                    raise P4ReduceError("the program fails")
                self._reduce(number)
            well = True
        finally:
            stage = self.stage
            self._enter("leaving")
            self.running.leave(well=well)
            self.stage = stage if not well else "leaving"
        if (aborted := self.running.session.aborted) is not None:
            raise aborted

    def _reduce(self, number: int) -> None:
        self._enter(f"in allreduce {number}")
        data = self.plan.inputs(self.rank, number)
        ended = threads.Event()
        errors: list[BaseException | None] = []

        def end(error: BaseException | None) -> None:
            errors.append(error)
            ended.set()

        engine = self.running.engine
        engine.submit(Operation(data), name=f"allreduce {number}", timeout=self.plan.timeout, on_end=end)
        ended.wait()
        if errors[0] is not None:
            raise errors[0]
        if not np.array_equal(data, self.plan.sum(number)):
            raise AssertionError(f"the sum of allreduce {number} is wrong")
