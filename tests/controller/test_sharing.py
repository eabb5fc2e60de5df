# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host that are one worker: who sends for whom, and what switches, ranks and people are told of it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.commands.views import show
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.fabric.slots import look
from p4reduce_controller.jobs.job import Job, Member
from p4reduce_controller.jobs.placement import how_to_be_fewer
from p4reduce_controller.service.status import status_of
from p4reduce_controller.switches.aggregator import Heard, Placement
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import LEAF1, LEAF2, SPINE, TreeHarness
from tests.support.controller.ranks import ready as all_ready
from tests.support.controller.running import Running
from tests.support.controller.sites import site_of
from tests.support.controller.stored_jobs import StoredJobs

ONE_SWITCH = Trees(["switch"])


class SharingHarness(TreeHarness):
    """A harness with ranks that say on which host they are, and whose HELLOs have that host's address."""

    def come(
        self, rank: int, world_size: int, host: str, *, stream: pb.Stream = pb.SHARED, name: str = "job"
    ) -> object:
        return self.join(rank, world_size, name, host=host, stream=stream)

    def hear_on(self, session: object, host: int, switch: int = 0, port: int = 5) -> bool:
        udp_port = 5000 + self.assigned(session).worker
        sender = Endpoint(f"02:00:00:00:01:{host:02x}", f"10.0.1.{host}", udp_port)
        return self.hear(session, switch, port, sender=sender)

    def job_on(self, *hosts: int, name: str = "job") -> list[object]:
        """Start a job with a rank on each of these hosts, and return the ranks' sessions.

        All ranks can share a stream, and the first switch has heard them. Each host has a port of its own there.
        """
        sessions = [self.come(rank, len(hosts), f"h{host}", name=name) for rank, host in enumerate(hosts)]
        for session, host in zip(sessions, hosts, strict=True):
            self.hear_on(session, host, port=5 + host)
        return sessions

    def told_ready(self, sessions: list[object]) -> list[pb.Ready]:
        self.installed()
        return [self.told[session][-1].ready for session in sessions]


def ranks_of(placement: Placement) -> list[int]:
    return [worker.worker for worker in placement.workers[: len(placement.workers) - placement.children]]


def test_ranks_of_a_host_are_one_worker() -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = harness.job_on(0, 1, 1, 0, 2)
    assert ranks_of(harness.installs[0].placements[0]) == [0, 1, 4]
    for ready in harness.told_ready(sessions):
        assert list(ready.leaders) == [0, 1, 1, 0, 4]
        assert list(ready.peers) == [0, 1, 4]
        assert not ready.hosts


def test_who_leads_is_found_once_however_many_ranks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    look_for = Job._leaders

    def counted(job: Job) -> dict[int, int]:
        found.append(job.name)
        return look_for(job)

    monkeypatch.setattr(Job, "_leaders", counted)
    harness = SharingHarness(ONE_SWITCH)
    for name, ranks in (("few", 2), ("many", 40)):
        told = harness.told_ready(harness.job_on(*(rank // 4 for rank in range(ranks)), name=name))
        assert list(told[-1].leaders) == [rank // 4 * 4 for rank in range(ranks)]
    assert found.count("many") == found.count("few") == 1


@pytest.mark.parametrize("streams", [[pb.UNSAID] * 3, [pb.SHARED, pb.SHARED, pb.UNSAID]], ids=["all", "one"])
def test_beside_a_rank_of_an_earlier_release_all_send_for_themselves(streams: list[pb.Stream]) -> None:
    """Ranks of an earlier release say their host, but cannot share a stream.

    They would not know which other ranks are one worker, and so which operations are gathered.
    """
    harness = SharingHarness(ONE_SWITCH)
    sessions = [harness.come(rank, 3, "h0", stream=stream) for rank, stream in enumerate(streams)]
    for session in sessions:
        harness.hear_on(session, 0)
    assert ranks_of(harness.installs[0].placements[0]) == [0, 1, 2]
    assert harness.told_ready(sessions) == 3 * [pb.Ready(hosts=[0, 0, 0], answers=True, report_s=2)]


def test_ranks_on_hosts_of_their_own_are_told_what_they_always_were() -> None:
    harness = SharingHarness(ONE_SWITCH)
    assert harness.told_ready(harness.job_on(0, 1)) == 2 * [pb.Ready(answers=True, report_s=2)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from([LEAF1, LEAF2]), st.integers(5, 6)),
        min_size=1,
        max_size=12,
    )
)
def test_who_shares_is_at_one_place_and_each_worker_has_one(places: list[tuple[int, bool, int, int]]) -> None:
    """places: of each rank, its host, whether it can share, its leaf, and its port there."""
    harness = SharingHarness()
    sessions = [
        harness.come(rank, len(places), f"h{host}", stream=pb.SHARED if shares else pb.OWN)
        for rank, (host, shares, *_) in enumerate(places)
    ]
    for session, (host, _, leaf, port) in zip(sessions, places, strict=True):
        harness.hear_on(session, host + 10 * port, leaf, port)
    job = harness.installs[0]
    told = harness.told_ready(sessions)
    leaders = list(told[0].leaders) or list(range(len(places)))
    for rank, (one, (host, shares, leaf, port)) in enumerate(zip(leaders, places, strict=True)):
        together = [
            other
            for other, place in enumerate(places)
            if other == rank or (shares and place == (host, True, leaf, port))
        ]
        assert one == min(together)
        ready = told[rank]
        assert (list(ready.leaders) or list(range(len(places)))) == leaders
        assert ranks_of(job.placements[leaf]) == list(ready.peers)
        assert list(ready.peers) == sorted(
            {other for other, place in zip(leaders, places, strict=True) if place[2] == leaf}
        )


def test_forty_ranks_join_at_a_service(running: Running) -> None:
    ranks = [running.rank(rank, 40, host=f"h{rank % 5}") for rank in range(40)]
    all_ready(ranks)
    known = ranks[0].known
    assert all(rank.known == known for rank in ranks)
    assert (list(known.peers), list(known.leaders)) == (list(range(5)), [rank % 5 for rank in range(40)])


def test_more_hosts_than_a_switch_has_bits_for_are_refused_by_number() -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = harness.job_on(*[rank // 2 for rank in range(66)])
    for session in sessions:
        message = harness.last(session).message
        assert "33 workers and 0 switches are below switch, and a switch adds up at most 32 of them" in message
        assert "its 66 ranks are on 33 hosts, and those of one host are one worker if they" in message
        assert "not so" not in message
    assert not harness.installs
    assert not list(harness.jobs)


def test_who_could_be_fewer_workers_is_named() -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = [
        harness.come(rank, 36, "h0" if rank < 2 else "", stream=pb.SHARED if rank < 2 else pb.OWN) for rank in range(36)
    ]
    for rank, session in enumerate(sessions):
        harness.hear_on(session, min(rank // 12, 2), port=5 + min(rank // 12, 2))
    message = harness.last(sessions[7]).message
    assert (
        "35 workers and 0 switches are below switch, and a switch adds up at most 32 of them; its 36 ranks are on "
        "3 hosts"
    ) in (message)
    assert "if they have local='auto' and are behind one port of the switch" in message
    assert message.endswith("not so for ranks 2, 3, 4, 5, 6, 7, 8, 9 and 26 more")


def test_who_keeps_all_from_sharing_is_named() -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = [harness.come(rank, 34, "h0", stream=pb.UNSAID if rank == 20 else pb.SHARED) for rank in range(34)]
    for session in sessions:
        harness.hear_on(session, 0)
    message = harness.last(sessions[7]).message
    assert "its 34 ranks are on 1 host, and those of one host are one worker if all of the job use" in message
    assert message.endswith("not so for rank 20")


def test_threads_that_keep_all_from_sharing_are_named() -> None:
    """Ranks with several threads say that they share memory, but no stream."""
    members = {rank: Member(rank, None, 0, host=f"h{rank % 4}", stream=pb.OWN) for rank in range(40)}
    for rank, member in members.items():
        host = rank % 4
        member.heard[0] = Heard(5 + host, Endpoint("02:00:00:00:00:01", f"10.0.1.{host}", 5000 + rank), 1, 1, rank, 1)
    job = Job(
        "wide", 1, 1, 40, 32, {}, 2, 10.0, 0.0, 0.0, 1, site_of(1), members=members, numbers=((1, 1), (2, 1)), threads=2
    )
    assert how_to_be_fewer(job) == (
        "its 40 ranks are on 4 hosts, and those of one host are one worker if all of the job have threads=1, not 2"
    )


def test_every_rank_of_a_host_has_to_be_heard() -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = [harness.join(rank, 3, host="h0", stream=pb.SHARED, timeout_s=5.0) for rank in range(3)]
    for session in sessions[:2]:
        harness.hear_on(session, 0)
    harness.tick(1.0)
    assert list(harness.told[sessions[0]][-1].waiting.ranks) == [2]
    harness.tick(6.0)
    assert "rank 2 joined, but no HELLO from there reached the switch" in harness.last(sessions[0]).message


@pytest.mark.parametrize("dead", [0, 2])
def test_whoever_dies_is_named_be_it_the_one_that_sends_or_another(dead: int) -> None:
    harness = SharingHarness(ONE_SWITCH)
    sessions = harness.job_on(0, 1, 0)
    harness.installed()
    harness.lose(sessions[dead])
    abort = harness.last(sessions[1])
    assert (abort.rank, abort.reason) == (dead, pb.WORKER_LOST)
    assert f"rank {dead} was lost" in abort.message
    assert harness.removals[0].abort == abort


def test_a_look_finds_the_ranks_that_send() -> None:
    """Bits are places of workers: the second is rank 2's, which sends for rank 3, too."""
    harness = SharingHarness(ONE_SWITCH)
    harness.job_on(0, 0, 1, 1, 2)
    switch = FakeSwitch(16)
    switch.halves = {0: (6, 0b110)}

    async def counted() -> pb.Counted:
        switch._connected.set()
        return await look(harness.installs[0], 0, {0: switch})

    assert asyncio.run(counted()) == pb.Counted(half=0, seq=6, ranks=[2, 4])


def test_people_see_who_sends_for_whom() -> None:
    harness = SharingHarness(ONE_SWITCH)
    harness.join(0, 2, "gathers", host="h0", stream=pb.SHARED)
    harness.job_on(0, 0, 1, 1)
    harness.installed()

    async def asked() -> pb.StatusReply:
        switch = FakeSwitch(16)
        switch._connected.set()
        return await status_of(harness.jobs, Inventory([switch], ONE_SWITCH), harness.now)

    status = asyncio.run(asked())
    gathers, job = sorted(status.jobs, key=lambda one: one.name)
    assert not gathers.members[0].HasField("leader")
    assert [member.leader for member in job.members] == [0, 0, 2, 2]
    console = Console(record=True, width=160, file=io.StringIO())
    show(status, console)
    rows = console.export_text().splitlines()
    assert any("job" in row and "ready" in row and "joined" in row and "sends" not in row for row in rows)
    assert any("2 workers" in row for row in rows)
    assert sum("joined, rank 2 sends" in row for row in rows) == 1


def share(stored: StoredJobs, *hosts: str) -> None:
    sessions = [stored.harness.join(rank, len(hosts), host=host, stream=pb.SHARED) for rank, host in enumerate(hosts)]
    for session, host in zip(sessions, hosts, strict=True):
        stored.harness.hear(session, LEAF1 if host < "h2" else LEAF2)
    stored.harness.installed()


def test_a_controller_that_is_started_again_has_the_same_workers(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path)
    share(stored, "h0", "h1", "h0", "h2", "h2")
    stored.save()
    (before,), (after,) = stored.harness.jobs, stored.restored()
    assert after.leaders == before.leaders == {0: 0, 1: 1, 2: 0, 3: 3, 4: 3}
    assert {at: ranks_of(one) for at, one in before.placements.items()} == {SPINE: [], LEAF1: [0, 1], LEAF2: [3]}
    assert {at: len(one.workers) for at, one in after.placements.items()} == {SPINE: 2, LEAF1: 2, LEAF2: 1}
    stored.close()


def test_a_rank_that_comes_back_is_told_the_same(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path)
    share(stored, "h0", "h0", "h2")
    told = [stored.harness.told[("job", rank, 0)] for rank in range(3)]
    stored.save()
    jobs = stored.restored()
    for rank, words in enumerate(told):
        assigned, ready = words[0].assigned, words[-1].ready
        back = pb.Rejoin(job=assigned.job, generation=assigned.generation, rank=rank, key=assigned.rejoin_key)
        jobs.rejoin(rank, back, 0.0)
        (effect,) = jobs.take_effects()
        assert effect.message.ready == ready  # type: ignore[union-attr]
        assert list(ready.leaders) == [0, 0, 2]
    stored.close()


def test_files_of_earlier_releases_have_no_workers_of_several_ranks(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path)
    stored.job("job", LEAF1, LEAF1, host="here")
    stored.save()
    stored.path.write_text("".join(line for line in stored.path.read_text().splitlines(True) if '"stream"' not in line))
    (job,) = stored.restored()
    assert job.leaders == {0: 0, 1: 1}
    assert job.hosts == [0, 0]
    stored.close()


def test_ranks_of_a_host_behind_a_group_of_ports_share_a_stream(tmp_path: Path) -> None:
    """Each rank's packets take a link of their own. The state file keeps the group."""
    stored = StoredJobs(tmp_path, Trees(["one"]))
    for rank, host in enumerate(("a", "a", "b")):
        session = stored.harness.join(rank, 3, host=host, stream=pb.SHARED)
        assert stored.harness.hear(session, 0, 1 + rank, lag=(1, 2) if host == "a" else ())
    [job] = stored.harness.installs
    assert job.workers == [0, 2]
    stored.harness.installed()
    stored.save()
    [after] = stored.restored()
    assert (after.workers, after.members[1].heard[0].ports) == ([0, 2], (1, 2))
