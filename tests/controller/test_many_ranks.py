# SPDX-License-Identifier: Apache-2.0
"""Jobs of thousands of ranks: where they are placed, and what their ranks are told."""

from __future__ import annotations

import io
import random
import re
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import MOST_RANKS_NAMED
from p4reduce.protocol.constants import MAX_RANKS, MAX_WORKERS, NOBODY, PARENT
from p4reduce_controller.commands import views
from p4reduce_controller.commands.views import show
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.jobs import NOTICES_A_SECOND, NOTIFY_AFTER
from p4reduce_controller.jobs.reports import _median_without
from tests.support.controller.wide_trees import WideHarness


@pytest.mark.parametrize(
    ("ranks", "ranks_per_host", "hosts_per_leaf", "widths"),
    [
        (992, 1, 31, [32]),  # as many senders as two levels have
        (1024, 1, 31, [2, 17]),
        (1024, 8, 4, [32]),
        pytest.param(2048, 1, 31, [3, 23], marks=pytest.mark.slow),
        pytest.param(2048, 8, 8, [32], marks=pytest.mark.slow),
        pytest.param(4096, 1, 31, [5, 27], marks=pytest.mark.slow),
        pytest.param(4096, 1, 16, [16, 16], marks=pytest.mark.slow),
        (4096, 8, 16, [32]),
        (4096, 128, 32, []),  # at one switch
    ],
)
def test_placement(ranks: int, ranks_per_host: int, hosts_per_leaf: int, widths: list[int]) -> None:
    """Every rank's values reach the root once: through its leader, and one bit at each switch on the way."""
    harness = WideHarness(widths)
    sessions = harness.all_join(ranks, ranks_per_host)
    order = list(harness.hellos(sessions, ranks_per_host, hosts_per_leaf))
    random.Random(ranks).shuffle(order)
    for leaf, hello in order:
        assert harness.jobs.on_hello(leaf, hello)
    harness.carry_out()
    (job,) = harness.installs
    placements, trees = job.placements, harness.switches.site.trees
    assert len(job.workers) == ranks // ranks_per_host
    senders = []
    for at, placed in placements.items():
        assert 1 <= len(placed.workers) <= (MAX_WORKERS if placed.parent is None else PARENT)
        assert (placed.parent is None) == (at == 0)
        if placed.parent is not None:
            above = placements[trees.uplinks[at].parent]
            assert above.workers[placed.parent.worker].sender == harness.switches.site.addresses[at]
        children = [other for other in placements if other and trees.uplinks[other].parent == at]
        assert placed.children == len(children)
        senders += [one.sender for one in placed.workers[: len(placed.workers) - len(children)]]
    assert len(set(senders)) == len(senders) == len(job.workers)
    harness.installed()
    assert job.state is State.READY
    for rank, session in enumerate(sessions):
        ready = harness.told[session][-1].ready
        leader = rank // ranks_per_host * ranks_per_host
        assert not ready.peers or leader in ready.peers
        assert list(ready.leaders) == ([] if ranks_per_host == 1 else list(job.leaders.values()))
        (leaf,) = job.members[rank].heard
        if rank == leader:
            number = list(ready.peers).index(rank) if ready.peers else rank
            assert placements[leaf].workers[number] == job.members[rank].heard[leaf]


def test_two_levels_are_too_few_for_1024_senders() -> None:
    harness = WideHarness([33])
    sessions = harness.all_join(1023)
    for leaf, hello in harness.hellos(sessions, 1, 31):
        harness.jobs.on_hello(leaf, hello)
    harness.carry_out()
    said = harness.told[sessions[0]][-1].abort.message
    assert "0 workers and 33 switches are below root, and a switch adds up at most 32 of them" in said


def test_what_ranks_are_told_while_thousands_join() -> None:
    harness = WideHarness([5, 27])
    early = [harness.join(rank, MAX_RANKS) for rank in range(100)]
    harness.tick(2 * NOTIFY_AFTER)
    waiting = harness.told[early[0]][-1].waiting
    assert waiting == pb.Waiting(
        what=pb.Waiting.JOIN, ranks=range(100, 100 + MOST_RANKS_NAMED), more=MAX_RANKS - 100 - MOST_RANKS_NAMED
    )
    late = [harness.join(rank, MAX_RANKS) for rank in range(100, MAX_RANKS - 1)]
    harness.tick(0.1)
    assert harness.told[late[0]][-1].HasField("waiting")  # a rank learns at once what it waits for
    assert harness.told[early[0]][-1].waiting == waiting  # but changes only later
    harness.tick(MAX_RANKS / NOTICES_A_SECOND)
    assert harness.told[early[0]][-1].waiting == pb.Waiting(what=pb.Waiting.JOIN, ranks=[MAX_RANKS - 1])
    last = harness.join(MAX_RANKS - 1, MAX_RANKS)
    sessions = [*early, *late, last]
    harness.tick(0.1)
    assert all(harness.told[one][-1].waiting.what == pb.Waiting.HELLO for one in sessions)
    assert all(harness.told[one][-1].waiting.you for one in sessions)
    hellos = list(harness.hellos(sessions, 1, 31))
    for leaf, hello in hellos[:-1]:
        assert harness.jobs.on_hello(leaf, hello)
        assert not harness.jobs.awaits(hello.nonce)  # its further HELLOs are not looked at
    harness.tick(MAX_RANKS / NOTICES_A_SECOND)
    assert harness.told[last][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[MAX_RANKS - 1], you=True)
    assert harness.told[early[0]][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[MAX_RANKS - 1])
    assert max(message.ByteSize() for session in sessions for message in harness.told[session][1:]) < 200


def test_a_hello_of_a_rank_beyond_the_field_counts_by_its_nonce() -> None:
    harness = WideHarness([5, 27])
    sessions = harness.all_join(300)
    (leaf, hello) = list(harness.hellos(sessions, 1, 31))[280]
    assert hello.worker == NOBODY
    (job,) = harness.jobs
    assert harness.jobs.on_hello(leaf, hello)
    assert job.unheard == {*range(300)} - {280}


def test_the_error_of_a_job_whose_ranks_do_not_come_names_few() -> None:
    harness = WideHarness([5, 27])
    session = harness.join(7, MAX_RANKS, timeout_s=1.0)
    harness.tick(2.0)
    said = harness.told[session][-1].abort.message
    assert ", 32 and 4063 more of 4096 did not join" in said
    assert len(said) < 300


def test_tables_list_the_ranks_that_others_wait_for_first() -> None:
    places = [pb.Attachment(heard=True, port=5, ip="10.0.0.1", udp_port=5001)]
    members = [pb.Member(rank=rank, places=places if rank != 3000 else []) for rank in range(MAX_RANKS) if rank != 4000]
    job = pb.Job(name="job", world_size=MAX_RANKS, members=members, pools=[pb.Pool(count=4)], slots=4)
    status = pb.StatusReply(switches=[pb.Switch(name="s", address="a:1", state="Ready")], jobs=[job])
    for view in (lambda console: show(status, console), lambda console: console.print(views.job(status, job))):
        console = Console(record=True, width=160, file=io.StringIO())
        view(console)
        text = console.export_text()
        assert text.count("10.0.0.1:5001") == views.MOST_ROWS - 2
        assert re.search(r"3000 .*(\n.*)+4000 .*(\n.*)+ 0 ", text)
        assert "and 3840 more" in text


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.data())
def test_median_of_the_others(shares: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(shares) - 1))
    others = shares[:index] + shares[index + 1 :]
    assert _median_without(sorted(shares), shares[index]) == median(others)
