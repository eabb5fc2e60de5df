# SPDX-License-Identifier: Apache-2.0
"""Jobs with a faulty member on a real data plane: the member is admitted, but sends wrong packets.

Many jobs run at once, in steps. In each, the switch gets one packet of every job, and must answer as the model does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import TypeAlias

from p4reduce.protocol import Membership
from p4reduce.protocol.constants import PARENT
from tests.support.protocol.faulty_member import FAULTS, FaultyMember, check_ends, membership_of, run_case, run_cases
from tests.support.protocol.model_switch import ModelSwitch

from . import frames
from .frames import Host
from .jobs import Job, Member
from .switch import SWITCH, Switch

SLOTS = 2
AT_ONCE = 24  # simulations; a third each has 2, 3 and 4 workers
RACKS = ((0, 1), (2, 3))
WAIT_S = 60.0
Answer: TypeAlias = "tuple[tuple[int, ...], bytes] | None"


class Steps:
    """The requests of simulations in threads to one switch.

    A step begins when all running simulations wait for an answer; then the switch gets all their packets.
    """

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self._asked: Queue[tuple[Share, int | None, bytes, Future[Answer]] | None] = Queue()
        self._receivers: dict[bytes, tuple[Share, int]] = {}  # by IP address and UDP port

    def add(self, share: Share) -> None:
        for worker in [*range(share.job.size), *([PARENT] if share.job.parent else [])]:
            host = share.job.member(worker).host
            self._receivers[frames.ip_bytes(host.ip) + host.udp_port.to_bytes(2, "big")] = share, worker

    def ask(self, share: Share, sender: int | None, payload: bytes) -> Answer:
        """Send a packet from a simulation's thread, and return the answer.

        sender: the worker that sends. None resets the job's slots instead.
        """
        answer: Future[Answer] = Future()
        self._asked.put((share, sender, payload, answer))
        return answer.result(WAIT_S)

    def run(self, simulations: list[Callable[[], Counter[str]]]) -> Counter[str]:
        """Run all simulations to their ends, and return the sum of their counts."""

        def simulate(simulation: Callable[[], Counter[str]]) -> Counter[str]:
            try:
                return simulation()
            finally:
                self._asked.put(None)

        with ThreadPoolExecutor(len(simulations)) as pool:
            results = [pool.submit(simulate, simulation) for simulation in simulations]
            running = len(simulations)
            while running:
                asked = [self._asked.get(timeout=WAIT_S) for _ in range(running)]
                there = [one for one in asked if one is not None]
                running = len(there)
                self._step(there)
        return sum((result.result() for result in results), Counter())

    def _step(self, asked: list[tuple[Share, int | None, bytes, Future[Answer]]]) -> None:
        try:
            answers = self._exchange([(share, sender, payload) for share, sender, payload, _ in asked])
        except BaseException as error:
            for *_, answer in asked:
                answer.set_exception(error)
        else:
            for share, _, _, answer in asked:
                answer.set_result(answers.get(share))

    def _exchange(self, asked: list[tuple[Share, int | None, bytes]]) -> dict[Share, Answer]:
        if seqs := {half: seq for share, sender, _ in asked if sender is None for half, seq in share.fresh.items()}:
            self.switch.reset_halves(seqs).expect()
        senders = [(share.job.member(sender), payload) for share, sender, payload in asked if sender is not None]
        sent = [(one.port, frames.udp_frame(one.host, SWITCH, payload)) for one, payload in senders]
        answers: dict[Share, tuple[list[int], bytes]] = {}
        for out in self.switch.exchange(*sorted(sent, key=lambda one: one[0])).ports.values():
            for frame in out:
                share, receiver = self._receivers[frame[30:34] + frame[36:38]]
                receivers, _ = answers.setdefault(share, ([], b""))
                receivers.append(receiver)
                answers[share] = receivers, frame[42 : 34 + int.from_bytes(frame[38:40], "big")]
        return {share: (tuple(sorted(receivers)), payload) for share, (receivers, payload) in answers.items()}


class Share:
    """A job of the switch, which serves a simulation as a switch of its own. A model beside it counts packets.

    number: the job's number at the switch, which may differ from that in the simulation's packets.
    index: the worker of its parent that the switch is, if it is a leaf.
    """

    def __init__(self, steps: Steps, number: int, workers: int, index: int | None = None) -> None:
        above = Member(steps.switch.ports[-1], Host(f"02:00:00:01:{number:02x}:01", f"10.97.{number}.1", 6000))
        self.steps, self.number, self.index = steps, number, index
        self.job = Job(
            steps.switch, workers, number=number, pool_base=2 * SLOTS * number, slots=SLOTS,
            parent=None if index is None else above, index=index or 0,
        ).start()  # fmt: skip
        first = self.job.first_seq
        self.fresh = {self.job.pool_base + half: (first - 2 + half % 2) % 2**32 for half in range(2 * SLOTS)}
        steps.add(self)

    def begin(self, membership: Membership) -> Share:
        """Begin a case with fresh slots and a new model."""
        self.model = ModelSwitch(membership, self.job.size, self.index)
        self.outcomes = self.model.outcomes
        self.steps.ask(self, None, b"")
        return self

    def query(self, half: int) -> tuple[int, int]:
        return self.model.query(half)

    def receive(self, sender: int, payload: bytes) -> Answer:
        expected = self.model.receive(sender, payload)
        answer = self.steps.ask(self, sender, _renumbered(payload, self.model.job.job, self.number))
        if answer is not None:
            answer = answer[0], _renumbered(answer[1], self.number, self.model.job.job)
        assert answer == expected, (sender, payload.hex(), answer, expected)
        return answer


def _renumbered(payload: bytes, one: int, other: int) -> bytes:
    """Return a packet with two job numbers exchanged.

    A packet with the number of another job thus still names another job.
    """
    numbers = {one.to_bytes(2, "big"): other, other.to_bytes(2, "big"): one}
    named = numbers.get(payload[4:6])
    return payload if named is None else payload[:4] + named.to_bytes(2, "big") + payload[6:]


def never_another_sum(switch: Switch, faults: int, *, tree: bool) -> None:
    """Run jobs with at least `faults` faults on the switch. Honest ranks must get exactly the sum of what members sent.

    tree: whether each job spans a root and two leaves, all on this switch.
    """
    steps = Steps(switch)

    def simulation(lane: int) -> Callable[[], Counter[str]]:
        workers = 4 if tree else 2 + lane % 3
        jobs = 1 + len(RACKS) if tree else 1
        numbers = range(1 + jobs * lane, 1 + jobs * (lane + 1))
        root = Share(steps, numbers[0], len(RACKS) if tree else workers)
        leaves = [Share(steps, numbers[1 + index], len(rack), index) for index, rack in enumerate(RACKS) if tree]
        membership = membership_of(workers, switch.lanes, switch.block_size, SLOTS)

        def case(seed: int) -> FaultyMember:
            shares = [one.begin(membership) for one in (root, *leaves)]
            return run_case(seed, membership, shares[0], racks=RACKS if tree else (), leaves=shares[1:])

        return lambda: run_cases(case, -(-(FAULTS or faults) // AT_ONCE), lane, AT_ONCE)

    check_ends(steps.run([simulation(lane) for lane in range(AT_ONCE)]))
