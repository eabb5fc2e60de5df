# SPDX-License-Identifier: Apache-2.0
"""A switch below another: what it sends up, what it takes from there, and what it tells its workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import NOBODY, PARENT, Aggregation, Host
from tests.support.dataplane.jobs import Job, Member, Round, values_of
from tests.support.dataplane.p4runtime import PacketIn
from tests.support.dataplane.switch import SWITCH, Outputs, Switch

SPINE = Host("02:00:00:00:97:01", "10.97.0.1", 6000)
OTHER_LEAF = Host("02:5a:00:00:00:02", "10.255.0.2")
RESETS = 4  # of a job with two slots


def leaf_job(switch: Switch, size: int = 3, **other: int) -> Job:
    """Start a job whose workers are on the first ports, with the spine behind the last one, and return it."""
    return Job(switch, size, parent=Member(switch.ports[-1], SPINE), index=5, **other).start()


class LeafRound(Round):
    """A round of a leaf's job. The answer from above has more than the rack's own sums."""

    def __init__(self, job: Job, seq: int = 2, lanes: Sequence[Sequence[int]] | None = None, **how: int) -> None:
        every = range(job.switch.lanes)
        keys = [[16 * (rank + 1) + lane for lane in every] for rank in range(job.size)]
        super().__init__(job, seq, lanes=lanes, keys=keys, **how)
        self.union = sorted({lane for packet in self.packets for lane in packet.values})
        last = self.packets[-1]
        self.partial = replace(last, keys=self.keys, values=self.sums(self.union), worker=job.index)
        # The other racks have more, and lanes that nobody has here.
        self.total = values_of(seq, job.switch, [lane for lane in every if self.active >> lane & 1])
        self.keys = tuple(every)
        self.answer = replace(self.partial, op=frames.RESULT, keys=self.keys, values=self.total)

    def from_parent(self, packet: Aggregation) -> Outputs:
        return self.switch.exchange(self.job.from_parent(packet))

    def complete(self) -> None:
        for rank in range(self.job.size - 1):
            self.send(rank).expect()
        self.send(self.job.size - 1).expect(self.job.to_parent(self.partial))

    def answered(self) -> None:
        """Send the parent's answer, and expect it at all members."""
        named = self.job.named(self.answer, envoy=self.job.size - 1)
        self.from_parent(self.answer).expect(self.job.to_all(named))


def needs_absent_lanes(switch: Switch, of: int = 1) -> None:
    if switch.lanes < of or switch.max_absent < 1:
        pytest.skip(f"no lane can be absent of {switch.lanes} with {switch.block_size} values each")


def test_the_partial_sums_go_up_and_the_parents_go_down(switch: Switch) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    one.answered()
    stored = {} if switch.counts_once else {"stored": 1}
    assert switch.counts() == {
        "reset": RESETS, "started": 1, "added": 2, "sent_up": 1, "completed": 1, **stored,
    }  # fmt: skip
    state = switch.query(job.pool_base)
    assert state.bitmap == 0x80000007
    assert state.keys == one.answer.keys
    assert state.values == tuple(one.total[lane].astype(">i4").tobytes() for lane in range(switch.lanes))


@pytest.mark.parametrize("worker", [0, 4, PARENT])
def test_nobody_here_completed_the_round_of_all(switch: Switch, worker: int) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    answer = replace(one.answer, worker=worker)
    one.from_parent(answer).expect(job.to_all(replace(answer, worker=frames.NOBODY)))


def test_a_rack_of_one(switch: Switch) -> None:
    job = leaf_job(switch, 1)
    for seq in range(2, 7):
        one = LeafRound(job, seq)
        one.send(0).expect(job.to_parent(one.partial))
        one.answered()


def test_as_many_workers_as_a_leaf_has_room_for(switch: Switch) -> None:
    job = leaf_job(switch, 31)
    one = LeafRound(job)
    one.complete()
    one.answered()
    assert switch.query(job.pool_base).bitmap == 0xFFFFFFFF


def test_the_union_of_the_racks_lanes_goes_up(switch: Switch) -> None:
    needs_absent_lanes(switch, of=2)
    job = leaf_job(switch, 2)
    one = LeafRound(job, lanes=[range(1, switch.lanes), range(switch.lanes - 1)])
    assert one.union == list(range(switch.lanes))
    one.complete()


def test_a_rack_of_one_sends_its_own_lanes(switch: Switch) -> None:
    needs_absent_lanes(switch)
    job = leaf_job(switch, 1)
    one = LeafRound(job, lanes=[range(1, switch.lanes)])
    for _ in range(2):
        one.send(0).expect(job.to_parent(one.partial))


def test_lanes_of_the_former_round_do_not_go_up(switch: Switch) -> None:
    needs_absent_lanes(switch)
    job = leaf_job(switch, 2)
    former = LeafRound(job, 2)
    former.complete()
    former.from_parent(former.answer)
    latter = LeafRound(job, 4, lanes=[range(1, switch.lanes)] * 2)
    latter.complete()


def test_an_announcement_goes_up_as_keys(switch: Switch) -> None:
    job = leaf_job(switch, 2)
    one = LeafRound(job, lanes=[(), ()], active=0)
    one.complete()
    one.answered()


def test_who_completed_the_round_asks_for_all(switch: Switch) -> None:
    """If this worker retransmits, the same partial sums go up again. Others get a STATUS that the parent is awaited."""
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    before = switch.query(job.pool_base)
    for _ in range(2):
        one.send(2).expect(job.to_parent(one.partial))
        for rank in (0, 1):
            one.send(rank).expect(job.to_one(rank, job.status(one.packets[rank], 0b111)))
    assert switch.query(job.pool_base) == before
    counts = switch.counts()
    assert (counts["sent_up"], counts["ahead"]) == (3, 4)


def test_asking_adds_nothing_to_what_goes_up(switch: Switch) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    liar = replace(one.packets[2], values=values_of(9, switch, range(switch.lanes)))
    if switch.guards_keys:
        liar = replace(liar, keys=(0,) * switch.lanes)
    switch.exchange(job.sent(liar)).expect(job.to_parent(one.partial))
    one.send(2).expect(job.to_parent(one.partial))


def test_a_result_counts_once(switch: Switch) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    one.from_parent(one.answer)
    before = switch.query(job.pool_base)
    for packet in (one.answer, replace(one.answer, values=one.packets[0].values)):
        one.from_parent(packet).expect()
    assert switch.query(job.pool_base) == before
    assert switch.counts()["stale"] == 2


@pytest.mark.parametrize("op", [frames.RESULT, frames.STATUS])
def test_what_comes_too_early_or_too_late_is_dropped(switch: Switch, op: int) -> None:
    """Answers come before the rack is complete, after RESET, for other rounds, and for another operation."""
    job = leaf_job(switch)
    one = LeafRound(job, 4)
    answer = replace(one.answer, op=op)
    if op == frames.STATUS:
        answer = replace(answer, active=0, values={})
    one.from_parent(answer).expect()
    one.from_parent(replace(answer, seq=2)).expect()  # which the half was reset to
    one.send(0).expect()
    one.send(1).expect()
    one.from_parent(answer).expect()
    one.send(2).expect(job.to_parent(one.partial))
    before = switch.query(job.pool_base)
    for seq in (2, 6, 4 + 2**31):
        one.from_parent(replace(answer, seq=seq)).expect()
    one.from_parent(replace(answer, fingerprint=answer.fingerprint ^ 0x100)).expect()
    assert switch.query(job.pool_base) == before
    assert switch.counts()["stale"] == 7
    one.answered()
    one.from_parent(answer).expect()


def test_a_half_reset_while_it_waits_for_the_parent_takes_only_newer_rounds(switch: Switch) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    switch.reset_halves({job.pool_base: 2}).expect()
    one.from_parent(one.answer).expect()
    one.send(2).expect()
    assert switch.counts()["stale"] == 2
    LeafRound(job, 4).complete()


def test_the_parents_status_is_told_to_all(switch: Switch) -> None:
    """It gets the bitmap of the workers at this leaf, all of which have sent their packets."""
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    before = switch.query(job.pool_base)
    status = job.status(one.partial, 0b1)
    one.from_parent(status).expect(job.to_all(job.named(job.status(one.partial, 0b111), envoy=2)))
    assert switch.query(job.pool_base) == before
    assert switch.counts()["ahead"] == 1


def test_only_the_parent_may_tell(switch: Switch) -> None:
    """The parent is known by address, UDP port, job, generation, and the ports where it is admitted.

    A switch without a parent accepts no answer.
    """
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    before = switch.query(job.pool_base)
    for host in (replace(SPINE, ip="10.97.0.2"), replace(SPINE, udp_port=6001)):
        switch.exchange((switch.ports[-1], frames.frame(host, SWITCH, one.answer))).expect()
    switch.exchange((switch.ports[0], frames.frame(SPINE, SWITCH, one.answer))).expect()
    assert switch.counts()["forbidden"] == 2
    for rank in range(3):
        switch.exchange(job.sent(replace(one.answer, worker=rank))).expect()
    assert switch.counts()["forbidden"] == 5
    one.from_parent(replace(one.answer, generation=2)).expect()
    one.from_parent(replace(one.answer, slot=one.answer.slot + 2 * job.slots)).expect()
    one.from_parent(replace(one.answer, slot=one.answer.slot ^ 1)).expect()
    counts = switch.counts()
    assert (counts["not_admitted"], counts["bad_slot"]) == (2, 2)
    assert switch.query(job.pool_base) == before


def test_the_parent_may_answer_at_each_port_where_it_is_admitted(switch: Switch) -> None:
    """It may choose another link of a group than this switch does."""
    job = leaf_job(switch)
    entry = job.admission(PARENT)
    switch.insert(replace(entry, match={**entry.match, "ingress_port": switch.ports[0]}))
    one = LeafRound(job)
    one.complete()
    answer = (switch.ports[0], frames.frame(SPINE, SWITCH, one.answer))
    switch.exchange(answer).expect(job.to_all(replace(one.answer, worker=2)))


def test_the_parent_may_send_nothing_else(switch: Switch) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.send(0).expect()
    before = switch.query(job.pool_base)
    for count, op in enumerate((frames.DATA, frames.RESET, frames.QUERY, frames.ABORT, 0, 15), 1):
        one.from_parent(replace(one.answer, op=op, worker=PARENT)).expect()
        assert switch.counts().get("forbidden") == count, op
    assert switch.query(job.pool_base) == before


@pytest.mark.parametrize("op", [frames.RESULT, frames.STATUS, frames.ERROR])
def test_what_the_parent_sends_to_another_leaf_passes_as_it_is(switch: Switch, op: int) -> None:
    job = leaf_job(switch)
    one = LeafRound(job)
    one.complete()
    switch.forward(OTHER_LEAF.mac, switch.ports[0])
    frame = frames.frame(SPINE, OTHER_LEAF, replace(one.answer, op=op))
    switch.exchange((switch.ports[-1], frame)).expect({switch.ports[0]: [frame]})


def test_a_hello_of_the_parent_goes_to_the_controller_as_it_is(switch: Switch) -> None:
    job = leaf_job(switch)
    for worker in (job.index, 0, NOBODY):
        hello = Aggregation(op=frames.HELLO, worker=worker, job=job.number, keys=(0,) * switch.lanes)
        port, frame = job.from_parent(hello)
        switch.exchange((port, frame)).expect(packet_ins=[PacketIn(port, 0, frame)])


def test_an_error_goes_to_the_root_first(switch: Switch) -> None:
    """If ranks below this leaf disagree, the error goes up to the root, and comes down from there to all."""
    job = leaf_job(switch)
    one = LeafRound(job)
    one.send(0).expect()
    wrong = replace(one.packets[1], fingerprint=one.packets[1].fingerprint ^ 0xBAD00)
    error = job.error(wrong, one.packets[1].fingerprint)
    for _ in range(2):
        switch.exchange(job.sent(wrong)).expect(job.to_parent(error))
    one.from_parent(replace(error, worker=job.index)).expect(job.to_all(replace(error, worker=frames.NOBODY)))
    assert switch.counts()["mismatch"] == 3


def test_an_error_from_below_goes_up_as_it_is(switch: Switch) -> None:
    """In a tree of three levels, this switch passes on the error of a leaf below it."""
    job = leaf_job(switch)
    error = job.error(job.packet(1, 2, fingerprint=0xBAD00), 0xC0DE)
    switch.exchange(job.sent(error)).expect(job.to_parent(error))


def test_the_root_tells_everyone_of_a_leafs_error(switch: Switch) -> None:
    job = Job(switch, 3).start()
    before = switch.query(job.pool_base)
    error = job.error(job.packet(1, 2, fingerprint=0xBAD00), 0xC0DE)
    switch.exchange(job.sent(error)).expect(job.to_all(error))
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": RESETS, "mismatch": 1, "query": 2}
