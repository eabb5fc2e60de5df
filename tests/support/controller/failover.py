# SPDX-License-Identifier: Apache-2.0
"""A job whose switches die: the harness of failover's tests."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Takeover
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions, digest
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.jobs_harness import JobsHarness

SWITCHES, RANKS, SLOTS = 3, 2, 6


class MortalSwitches(Switches):
    """Switches of which some are dead."""

    dead: frozenset[int] = frozenset()
    brief = False

    draining: frozenset[int] = frozenset()

    def conditions(self, number: int) -> Iterable[Unavailable]:
        if number in self.dead:
            yield Unavailable("it is dead", brief=self.brief)
        if number in self.draining:
            yield Unavailable("it is being drained", SwitchState.DRAINING)


class FailoverHarness(JobsHarness):
    """A job of two ranks with six slots at three switches, each of which has eight.

    `pool`: how many those have. `spare_switches`: how many of them are spares.
    """

    def __init__(
        self,
        *,
        moves_slots: bool = True,
        threads: int = 1,
        slots: int = SLOTS,
        pool: int = 8,
        spare_switches: int = 0,
        **join: object,
    ) -> None:
        super().__init__()
        addresses = [Endpoint(f"02:00:0a:00:00:f{at}", f"10.0.0.25{at}", 31314) for at in range(SWITCHES)]
        spares = frozenset(range(SWITCHES)[SWITCHES - spare_switches :])
        trees = Trees([str(address) for address in addresses], spares=spares)
        self.switches: MortalSwitches = MortalSwitches(Layout(4, 64, pool), addresses, trees)
        self.jobs = Jobs(self.switches, JobOptions(moves_slots=moves_slots))
        join = {"moves": True, "spares": True, "slots": slots, "threads": threads if threads > 1 else 0, **join}
        self.sessions = [self.join(rank, RANKS, **join) for rank in range(RANKS)]
        for session in self.sessions:
            for switch in range(SWITCHES):
                for thread in range(threads):
                    self.hear(session, switch, port=5 + switch, thread=thread)
        self.installed()
        for rank, member in self.job.members.items():
            member.key = digest(str(rank))

    @property
    def job(self) -> Job:
        [job] = self.jobs
        return job

    def kill(self, *switches: int, half: int | None = None) -> None:
        """Let switches die, and a rank ask about a half there."""
        self.switches.dead |= set(switches)
        self.ask(self.sessions[0], 2 * switches[0] if half is None else half)

    def stored(self) -> Takeover:
        """Store the one takeover that is to be kept."""
        [(job, takeover)] = self.keeps
        self.keeps.clear()
        self.jobs.stored(job, takeover)
        self.carry_out()
        return takeover

    def tell_rounds(self, takeover: Takeover, *rounds: list[int]) -> None:
        for session, own in zip(self.sessions, rounds, strict=True):
            self.jobs.rounds(session, pb.Rounds(number=takeover.number, rounds=own))
            self.carry_out()

    def taken_over(self, problem: str = "") -> None:
        [(job, takeover)] = self.takeovers
        self.takeovers.clear()
        self.jobs.taken_over(job, takeover, problem, self.now)
        self.carry_out()

    def take_over(self, slots: int = 2) -> Takeover:
        """Run a takeover of so many slots to its end."""
        takeover = self.stored()
        self.tell_rounds(takeover, *[[4] * slots] * RANKS)
        self.taken_over()
        return takeover


def restarted(harness: FailoverHarness, *, moves_slots: bool = True) -> FailoverHarness:
    """Return the harness of a later controller, which has restored the job. All ranks are away."""
    later = FailoverHarness.__new__(FailoverHarness)
    JobsHarness.__init__(later)
    later.switches, later.now = harness.switches, harness.now
    later.jobs = Jobs(later.switches, JobOptions(moves_slots=moves_slots))
    later.sessions = list(harness.sessions)
    job = harness.job
    job.takeovers.clear()
    for member in job.members.values():
        member.session = None
    later.jobs.restore([job], {})
    later.jobs.expect_returns(later.now)
    return later


def suspends(harness: JobsHarness, session: object) -> list[pb.Suspend]:
    return [message.suspend for message in harness.told[session] if message.HasField("suspend")]


def resumes(harness: JobsHarness, session: object) -> list[pb.Resume]:
    return [message.resume for message in harness.told[session] if message.HasField("resume")]
