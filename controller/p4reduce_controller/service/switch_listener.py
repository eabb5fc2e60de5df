# SPDX-License-Identifier: Apache-2.0
"""The listener that tells jobs what a switch reports."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.fabric.uplinks import Uplinks
from p4reduce_controller.service.effect_runner import EffectRunner
from p4reduce_controller.switches.aggregator import Heard


@dataclass(eq=False, repr=False)
class SwitchListener:
    """A `Listener` for the switch of this number."""

    switch: int
    inventory: Inventory
    uplinks: Uplinks
    runner: EffectRunner

    def awaits(self, nonce: int) -> bool:
        """Return whether the nonce is that of a switch's HELLO to a parent, or of a rank of a job."""
        return self.uplinks.awaits(nonce) or self.runner.jobs.awaits(nonce)

    def on_hello(self, hello: Heard) -> None:
        if self.switch not in self.inventory.switches:
            return  # it was removed meanwhile
        if not self.uplinks.on_hello(self.switch, hello) and self.runner.jobs.on_hello(self.switch, hello):
            self.runner.run()

    def connected(self, lost_jobs: frozenset[int], *, restarted: bool) -> None:
        switch = self.inventory.switches.get(self.switch)
        if self.runner.supervisor.stopping.is_set() or switch is None:
            return  # the next controller finds out itself, or the switch was removed
        why = f"the switch at {switch.target} was restarted and lost the job's state"
        if not restarted:
            why = (
                f"the switch at {switch.target} still runs, but lacks entries of the job: another P4Runtime client has "
                "changed them, or this controller's record of the job (--state, --store) is out of date"
            )
        for job in self.runner.jobs.live:
            if any(number in lost_jobs for number, _ in job.numbers_at_switches):
                if job.moving and job.move is not None and not job.move.kept:
                    job.move.lost = why  # the job is installed again, unless the move cannot be saved
                elif job.moving and job.move is not None and not job.move.done:
                    self.runner.supervisor.move(job)  # no rank uses its slots yet
                elif not self.runner.jobs.lost_at(job, self.switch, lost_jobs, why, self.runner.clock()):
                    self.runner.jobs.failed(job, why, pb.SWITCH_LOST)
        self.runner.run()

    def ports_changed(self) -> None:
        self.runner.ports_changed()
