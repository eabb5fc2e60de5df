# SPDX-License-Identifier: Apache-2.0
"""The service and the hosts' session together, on a switch in memory."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.certificates import TlsFiles
from p4reduce.control.client import Session
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.control.messages import MISMATCH
from p4reduce.errors import CollectiveTimeout, JoinError
from p4reduce.join.joining import join_job
from p4reduce.join.options import JoinOptions
from p4reduce.transport import TransportError
from p4reduce_controller.base.listening import ListenError, ServiceConfig, check_listen
from p4reduce_controller.service.service import Service
from p4reduce_controller.switches.aggregator import SwitchError
from p4reduce_controller.switches.pools import SlotRange
from tests.support.certificates import self_signed
from tests.support.controller.ranks import ready
from tests.support.controller.running import Loop, Running, leave
from tests.support.waiting import stays, wait_until


def test_a_job_from_joining_to_leaving(running: Running) -> None:
    ranks = [running.rank(rank, 3) for rank in range(3)]
    assigned = ready(ranks)
    assert [a.worker for a in assigned] == [0, 1, 2]
    assert {(a.job, a.generation, a.first_seq, a.slots) for a in assigned} == {
        (1, assigned[0].generation, assigned[0].first_seq, 4)
    }
    assert assigned[0].first_seq % 2 == 0
    assert len({a.hello_nonce for a in assigned}) == 3
    assert (assigned[0].lanes, assigned[0].block_size, assigned[0].aggregators[0].ip) == (4, 64, "127.0.0.1")
    assert running.switch.admitted[1].workers[2].sender.udp_port == 40002
    assert running.switch.log == ["install", "reset"]

    leave(running, ranks)
    assert running.switch.log == ["install", "reset", "fence", "forget"]


def test_a_jobs_secret_is_told_to_its_ranks_and_shown_to_nobody(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ranks = [running.rank(rank, 2) for rank in range(2)]
    assigned = [*ready(ranks), *ready([running.rank(0, 1, job="another")])]
    secrets = [one.abort_secret for one in assigned]
    assert secrets[0] == secrets[1] != secrets[2]
    assert running.switch.admitted[1].abort_secret == secrets[0]
    status = running.loop.run(running.controller.status())
    jobs = running.loop.call(lambda: f"{list(running.jobs)} {running.switch.admitted}")
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    shown = f"{status} {jobs} {assigned} {caplog.text}"
    assert [secret for secret in secrets if str(secret) in shown or f"{secret:x}" in shown] == []


def test_as_many_ranks_as_there_can_be(running: Running) -> None:
    ranks = [running.rank(rank, 32, slots=16) for rank in range(32)]
    assert sorted(a.worker for a in ready(ranks)) == list(range(32))
    ranks[31].session.close()
    wait_until(lambda: all(rank.aborted_at for rank in ranks[:31]), "the others to hear of it")


def test_the_same_name_again_is_a_new_generation(running: Running) -> None:
    first = ready([running.rank(0, 1)])[0]
    running.ranks[0].session.leave()
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    second = ready([running.rank(0, 1)])[0]
    assert second.job == first.job
    assert second.generation != first.generation


def test_jobs_beside_each_other_have_slots_of_their_own(running: Running) -> None:
    one = ready([running.rank(rank, 2, job="one") for rank in range(2)])[0]
    two = ready([running.rank(rank, 2, job="two") for rank in range(2)])[0]
    assert one.job != two.job
    placed = running.switch.admitted
    assert placed[one.job].slots.end <= placed[two.job].slots.first


def test_a_lost_rank_is_named_to_all_others_within_a_second(running: Running) -> None:
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    lost_at = time.monotonic()
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at and ranks[2].aborted_at, "the others to hear of it")
    assert max(ranks[0].aborted_at, ranks[2].aborted_at) - lost_at < 1
    for rank in (ranks[0], ranks[2]):
        error = rank.session.aborted
        assert error is not None
        assert (error.rank, error.reason) == (1, "WORKER_LOST")
        assert "rank 1" in str(error)
        rank.session.leave()  # nothing is left to leave
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert running.switch.aborts == [(1, 1, pb.WORKER_LOST)]
    assert running.switch.log[2:] == ["fence", "abort", "forget"]
    assert ranks[1].session.aborted is None  # its own doing


@pytest.mark.parametrize(
    ("blamed", "told"),
    [
        (None, "rank 1 has failed: it  is full"),
        (0, "rank 0 has failed, as rank 1 reports: it  is full"),
        (7, "rank 1 has failed: "),
    ],
)
def test_what_has_failed_is_told_to_all_at_once(running: Running, blamed: int | None, told: str) -> None:
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    ranks[1].session.fail("it \nis full", blamed)
    wait_until(lambda: all(rank.session.aborted for rank in ranks), "all to hear of it")
    assert not ranks[1].aborted_at  # no news to it
    for rank in ranks:
        error = rank.session.aborted
        assert error is not None
        assert (error.rank, error.reason) == (0 if blamed == 0 else 1, "WORKER_LOST")
        assert told in str(error)
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_a_mismatch_is_told_as_what_it_is(running: Running) -> None:
    ranks = [running.rank(rank, 2) for rank in range(2)]
    ready(ranks)
    ranks[1].session.fail("they differ", mismatch=True)
    wait_until(lambda: ranks[0].aborted_at, "the other to hear of it")
    error = ranks[0].session.aborted
    assert error is not None
    assert (str(error), error.reason) == ("they differ", MISMATCH)


def test_what_the_controller_stood_still_for_counts_against_nobody(running: Running) -> None:
    """It is stopped while ranks leave, for longer than they have for that."""
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    first = running.loop.loop.run_in_executor(None, ranks[0].session.leave)
    wait_until(
        lambda: any(m.leaving for m in running.loop.run(running.controller.status()).jobs[0].members), "the first"
    )
    running.loop.call(time.sleep, 2.5)  # the loop, and with it all of the controller
    # While it looks who is over time.
    stays(lambda: [rank.session.aborted for rank in ranks] == [None] * 3, "a rank is blamed", 0.3)
    for rank in ranks[1:]:
        running.loop.loop.run_in_executor(None, rank.session.leave)
    wait_until(first.done, "all to have left")
    assert [rank.session.aborted for rank in ranks] == [None] * 3


def test_missing_ranks_are_named_to_those_who_wait(running: Running) -> None:
    ranks = [running.rank(rank, 4, timeout=0.4) for rank in (0, 2)]
    for rank in ranks:
        error = rank.outcome()
        assert isinstance(error, JoinError)
        assert "ranks 1, 3 of 4 did not join" in str(error)
    assert running.used() == 0


def test_a_rank_that_the_switch_never_heard_is_named(running: Running) -> None:
    running.mute = {1}
    ranks = [running.rank(rank, 2, timeout=0.4) for rank in range(2)]
    for rank in ranks:
        error = rank.outcome()
        assert isinstance(error, JoinError)
        assert "rank 1 joined, but no HELLO" in str(error)
        assert "127.0.0.1:31314" in str(error)


def test_a_shorter_wait_of_the_hosts_own_names_them_too(running: Running) -> None:
    session = Session(running.address)
    session.join("job", 0, 2, timeout=30)
    with pytest.raises(JoinError, match="ranks that have not joined: 1"):
        session.wait_ready(lambda: None, timeout=0.5)
    session.close()


@pytest.mark.parametrize(
    ("rank", "world_size", "options", "text"),
    [
        (0, 2, {}, "every process of the job needs a rank of its own; if another run uses this job name"),
        (1, 3, {}, "it says world_size=3, but rank 0 said 2; if another run uses this job name"),
        (5, 2, {}, "has ranks 0 to 1"),
        (1, 2, {"slots": 8}, "wants 8 slots, but rank 0 wanted 4"),
        (1, 256, {}, "must be from 1 to 255"),
        (1, 2, {"slots": 99}, "slots=99, and the switch has 16"),
    ],
)
def test_ranks_that_disagree_are_told_at_both_ends(
    running: Running, rank: int, world_size: int, options: dict[str, int], text: str
) -> None:
    first = running.rank(0, 2)
    wait_until(lambda: first.assigned, "the first rank to be assigned")
    for error in (running.rank(rank, world_size, **options).outcome(), first.outcome()):
        assert isinstance(error, JoinError)
        assert f"rank {rank} is refused" in str(error)
        assert text in str(error)
    assert running.used() == 0


def test_a_rank_that_fails_while_it_joins_says_why(running: Running) -> None:
    running.mute = {0, 1}
    ranks = [running.rank(rank, 2) for rank in range(2)]
    wait_until(lambda: all(rank.assigned for rank in ranks), "both to be assigned")
    assert ranks[1].session.fail("no UDP socket to the switch")
    assert not ranks[1].session.fail("once more")
    for rank in ranks:
        assert "rank 1 has failed: no UDP socket to the switch" in str(rank.outcome())


def test_what_keeps_a_rank_from_joining_is_told_at_all_ranks(running: Running) -> None:
    running.mute = {0}
    first = running.rank(0, 2)
    wait_until(lambda: first.assigned, "the first rank to be assigned")
    with pytest.raises(TransportError, match="'nosuch0'"):
        join(running, 1, 2, interface="nosuch0")
    assert "rank 1 has failed: no UDP socket to the switch at" in str(first.outcome())


def test_a_switch_at_another_udp_port_is_told(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    jobs = running.controller.jobs
    site = jobs.switches.site
    jobs.switches.site = replace(site, addresses=(replace(site.addresses[0], udp_port=port),))
    with pytest.raises(JoinError) as error:
        join(running, 0, 1, timeout=2.5)
    told = f"this host cannot send packets to 127.0.0.1:{port}: Connection refused: no program listens on that UDP port"
    assert f"no HELLO from there reached the switch at 127.0.0.1:{port}; compare that" in str(error.value)
    assert told in str(error.value)
    assert told in caplog.text  # as soon as it waits


def join(running: Running, rank: int, world_size: int, *, interface: str | None = None, timeout: float = 10.0) -> None:
    options = JoinOptions(running.address, "job", rank, world_size, slots=4, interface=interface, timeout=timeout)
    join_job(options, on_abort=lambda _: None)


def test_a_latecomer_does_not_kill_a_running_job(running: Running) -> None:
    ranks = [running.rank(rank, 2) for rank in range(2)]
    ready(ranks)
    for rank in (1, 7):
        assert isinstance(running.rank(rank, 8 if rank else 2).outcome(), JoinError)
    error = running.rank(1, 2).outcome()
    assert "the job is ready and this rank joined it already: another run uses this job name" in str(error)
    assert [rank.session.aborted for rank in ranks] == [None, None]


def test_a_full_pool_says_what_is_free(running: Running) -> None:
    ready([running.rank(0, 1, job="one", slots=10)])
    error = running.rank(0, 1, job="two", slots=8).outcome()
    assert "8 slots asked, 6 of 16 free" in str(error)
    ready([running.rank(0, 1, job="three", slots=6)])


def test_leaving_alone_is_an_abort_for_the_others(running: Running) -> None:
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    ranks[2].session.leave()
    wait_until(lambda: ranks[0].aborted_at and ranks[1].aborted_at, "the others to hear of it")
    error = ranks[0].session.aborted
    assert error is not None
    assert (error.rank, error.reason) == (2, "LEFT_EARLY")
    assert ranks[2].session.aborted is None


def test_leaving_that_takes_too_long_names_who_is_awaited(running: Running) -> None:
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    with pytest.raises(CollectiveTimeout, match="ranks that have not left: 1, 2") as caught:
        ranks[0].session.leave(timeout=0.5)
    assert caught.value.awaited == (1, 2)
    assert isinstance(caught.value, TimeoutError)


def test_a_switch_that_refuses_a_job_is_quoted(running: Running) -> None:
    running.switch.fail["install"] = SwitchError("no room in table jobs")
    for rank in [running.rank(rank, 2) for rank in range(2)]:
        assert "no room in table jobs" in str(rank.outcome())
    wait_until(lambda: running.used() == 0, "the slots to be freed")


@pytest.mark.parametrize("what", ["install", "reset"])
def test_what_nobody_expected_fails_the_job_by_name(running: Running, what: str) -> None:
    running.switch.fail[what] = KeyError("surprise")
    for rank in [running.rank(rank, 2) for rank in range(2)]:
        assert "the switch at fake cannot be set up for the job: KeyError: 'surprise'" in str(rank.outcome())
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_a_rank_lost_while_resets_are_under_way(running: Running) -> None:
    running.loop.call(running.switch.hold_resets.clear)
    ranks = [running.rank(rank, 2) for rank in range(2)]
    wait_until(lambda: "reset" in running.switch.log, "the reset to begin")
    ranks[1].session.close()
    assert "rank 1 was lost" in str(ranks[0].outcome())
    assert running.used() == 4  # until the switch is done with it
    running.loop.call(running.switch.hold_resets.set)
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert running.switch.log[-3:] == ["fence", "abort", "forget"]


def test_jobs_carry_on_over_a_break_of_the_switch_connection(running: Running) -> None:
    ranks = [running.rank(rank, 2) for rank in range(2)]
    ready(ranks)
    running.loop.call(running.switch.disconnect)
    running.loop.call(running.switch.reconnect)
    for rank in ranks:
        assert rank.session.aborted is None
    leave(running, ranks)


def test_jobs_whose_state_the_switch_lost_are_aborted(running: Running) -> None:
    rank = running.rank(0, 1)
    assigned = ready([rank])[0]
    running.loop.call(running.switch.disconnect)
    running.loop.call(running.switch.reconnect, frozenset({assigned.job}))
    wait_until(lambda: rank.aborted_at, "the abort")
    error = rank.session.aborted
    assert error is not None
    assert (error.rank, error.reason) == (None, "SWITCH_LOST")
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_slots_of_a_job_that_died_while_the_switch_was_away_are_kept_until_it_is_back(running: Running) -> None:
    rank = running.rank(0, 1)
    ready([rank])
    running.loop.call(running.switch.disconnect)
    rank.session.close()
    wait_until(lambda: running.loop.call(lambda: running.jobs.lifecycle.aborted), "the abort")
    assert running.used() == 4
    running.loop.call(running.switch.reconnect)
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_a_stopped_controller_says_so(running: Running) -> None:
    rank = running.rank(0, 1)
    ready([rank])
    running.loop.run(running.controller.close())
    wait_until(lambda: rank.aborted_at, "the abort")
    assert rank.session.aborted is not None
    assert rank.session.aborted.reason == "CONTROLLER_STOPPED"
    assert running.switch.log[-3:] == ["fence", "abort", "forget"]


def test_a_first_message_that_is_no_join_is_refused(running: Running) -> None:
    with open_grpc_channel(running.address) as channel:
        call = rpc.JobsStub(channel).Session(iter([pb.ClientMessage(leave=pb.Leave())]))
        replies = list(call)
    assert [reply.abort.message for reply in replies] == ["the first message must be Join or Rejoin"]


def test_status_tells_all(running: Running) -> None:
    ready([running.rank(0, 1)])
    waiting = running.rank(0, 2, job="other")
    wait_until(lambda: waiting.assigned, "the second job")
    with open_grpc_channel(running.address) as channel:
        stub = rpc.JobsStub(channel)
        stub.SetLoss(pb.SetLossRequest(port=1, direction=pb.IN, rate=0.25), timeout=5)
        status = stub.Status(pb.StatusRequest(), timeout=5)
    assert [(job.name, job.state, [pool.first for pool in job.pools], job.slots) for job in status.jobs] == [
        ("job", "ready", [0], 4),
        ("other", "gathering", [4], 4),
    ]
    [place], [switch] = status.jobs[0].members[0].places, status.switches
    assert (place.heard, place.port, place.ip, place.udp_port) == (True, 1, "127.0.0.1", 40000)
    assert (switch.connected, switch.slots, switch.slots_used) == (True, 16, 8)
    assert switch.outcomes["hello"] == 7
    assert [(loss.port, loss.direction, loss.rate, loss.lost) for loss in switch.losses] == [(1, pb.IN, 0.25, 3)]


@pytest.fixture
def dealt(loop: Loop) -> Iterator[Running]:
    """Over three switches."""
    running = Running(loop, switches=3)
    yield running
    running.close()


def test_a_job_is_dealt_over_all_switches(dealt: Running) -> None:
    ranks = [dealt.rank(rank, 2, slots=7) for rank in range(2)]
    assigned = ready(ranks)
    assert [a.slots for a in assigned] == [7, 7]
    assert [at.udp_port for at in assigned[0].aggregators] == [31314, 31315, 31316]
    for number, switch in enumerate(dealt.switches):
        placed = switch.admitted[assigned[0].job]
        assert (placed.slots.first, placed.slots.count) == (0, 3)  # 7 over 3, rounded up
        assert [worker.sender.udp_port for worker in placed.workers] == [40000 + 1000 * number, 40001 + 1000 * number]
        assert switch.log == ["install", "reset"]
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    wait_until(lambda: dealt.used() == 0, "the slots to be freed")
    for switch in dealt.switches:
        assert switch.log[2:] == ["fence", "abort", "forget"]
        assert switch.aborts == [(assigned[0].job, 1, pb.WORKER_LOST)]


def test_more_slots_than_one_switch_has(dealt: Running) -> None:
    assert ready([dealt.rank(0, 1, slots=48)])[0].slots == 48
    assert dealt.used() == 48
    assert "16 slots asked" not in str(dealt.rank(0, 1, job="two", slots=49).outcome())
    error = dealt.rank(0, 1, job="two", slots=49).outcome()
    assert "slots=49, and the 3 switches have 48" in str(error)
    error = dealt.rank(0, 1, job="two", slots=4).outcome()
    assert "2 slots asked, 0 of 16 free at the switch 127.0.0.1:31314" in str(error)


def test_a_job_that_does_not_fit_at_one_switch_takes_nothing_at_the_others(dealt: Running) -> None:
    dealt.loop.call(lambda: dealt.jobs.pools[1].take(SlotRange(0, 14)))
    error = dealt.rank(0, 1, slots=9).outcome()
    assert "3 slots asked, 2 of 16 free at the switch 127.0.0.1:31315" in str(error)
    assert dealt.used() == 14


@pytest.mark.parametrize("what", ["install", "reset"])
def test_a_switch_that_fails_is_named_and_the_job_taken_off_all(dealt: Running, what: str) -> None:
    dealt.switches[1].fail[what] = SwitchError(f"switch at {dealt.switches[1].target}: no")
    for rank in [dealt.rank(rank, 2) for rank in range(2)]:
        assert "switch at fake 1: no" in str(rank.outcome())
    wait_until(lambda: dealt.used() == 0, "the slots to be freed")
    for switch in dealt.switches:
        assert switch.log[-3:] == ["fence", "abort", "forget"]
        assert not switch.admitted


def test_the_switch_that_hears_nothing_is_named(dealt: Running) -> None:
    dealt.deaf = {2}
    error = dealt.rank(0, 1, timeout=0.4).outcome()
    assert isinstance(error, JoinError)
    assert "rank 0 joined, but no HELLO from there reached the switch at 127.0.0.1:31316" in str(error)
    assert "31314" not in str(error)
    assert "31315" not in str(error)


def test_slots_are_kept_until_every_switch_has_forgotten_the_job(dealt: Running) -> None:
    rank = dealt.rank(0, 1)
    ready([rank])
    dealt.loop.call(dealt.switches[1].disconnect)
    rank.session.close()
    wait_until(lambda: "forget" in dealt.switches[2].log, "the others to be done")
    assert dealt.used() == 6
    dealt.loop.call(dealt.switches[1].reconnect)
    wait_until(lambda: dealt.used() == 0, "the slots to be freed")


def test_who_loses_a_rank_hears_which_switch_is_away(dealt: Running) -> None:
    ranks = [dealt.rank(rank, 2) for rank in range(2)]
    ready(ranks)
    dealt.loop.call(dealt.switches[2].disconnect)
    assert [rank.session.aborted for rank in ranks] == [None, None]
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    assert "rank 1 was lost" in str(ranks[0].session.aborted)
    assert "the switch at 127.0.0.1:31316 is unavailable: pulled" in str(ranks[0].session.aborted)
    dealt.loop.call(dealt.switches[2].reconnect)


def test_the_switch_that_lost_a_job_is_named(dealt: Running) -> None:
    rank = dealt.rank(0, 1)
    assigned = ready([rank])[0]
    dealt.loop.call(dealt.switches[1].disconnect)
    dealt.loop.call(dealt.switches[1].reconnect, frozenset({assigned.job}))
    wait_until(lambda: rank.aborted_at, "the abort")
    assert "the switch at fake 1 was restarted" in str(rank.session.aborted)
    wait_until(lambda: dealt.used() == 0, "the slots to be freed")


def test_status_and_loss_of_several_switches(dealt: Running) -> None:
    ready([dealt.rank(0, 1, slots=4)])
    with open_grpc_channel(dealt.address) as channel:
        stub = rpc.JobsStub(channel)
        stub.SetLoss(pb.SetLossRequest(port=1, direction=pb.IN, rate=0.25, switch="fake 2"), timeout=5)
        stub.SetLoss(pb.SetLossRequest(port=2, direction=pb.OUT, rate=0.5), timeout=5)
        with pytest.raises(grpc.RpcError, match=r"switch='fake 3': accepted are .*, .*, .*; nothing was changed"):
            stub.SetLoss(pb.SetLossRequest(port=1, rate=0.1, switch="fake 3"), timeout=5)
        dealt.switch.ports = {1: "UP"}
        with pytest.raises(grpc.RpcError, match=r"port=2: the ports of the switch .* are 1; nothing"):
            stub.SetLoss(pb.SetLossRequest(port=2, rate=0.1, switch="fake"), timeout=5)
        status = stub.Status(pb.StatusRequest(), timeout=5)
    assert [(switch.address, switch.slots_used) for switch in status.switches] == [
        ("fake", 2),
        ("fake 1", 2),
        ("fake 2", 2),
    ]
    assert [[loss.port for loss in switch.losses] for switch in status.switches] == [[2], [2], [1, 2]]
    assert [place.udp_port for place in status.jobs[0].members[0].places] == [40000, 41000, 42000]
    assert [(pool.switch, pool.first) for pool in status.jobs[0].pools] == [(0, 0), (1, 0), (2, 0)]


def test_loss_is_set_at_all_chosen_switches_or_at_none(dealt: Running) -> None:
    names = [one.name for one in dealt.controller.inventory.members.values()]
    dealt.switches[0].ports = {1: "UP", 2: "UP"}
    dealt.switches[1].ports = {1: "UP"}

    def lose(port: int, rate: float, switch: str = "") -> None:
        with open_grpc_channel(dealt.address) as channel:
            rpc.JobsStub(channel).SetLoss(pb.SetLossRequest(port=port, rate=rate, switch=switch), timeout=5)

    def rates() -> list[int]:
        return [sum(rate > 0 for rate in one.loss_rates.values()) for one in dealt.switches]

    with pytest.raises(grpc.RpcError, match=f"port=2: the ports of the switch {names[1]} are 1; nothing"):
        lose(2, 0.5)
    dealt.loop.call(dealt.switches[2].disconnect)
    with pytest.raises(grpc.RpcError, match=f"the switch {names[2]} is unavailable: pulled"):
        lose(1, 0.5)
    assert rates() == [0, 0, 0]
    dealt.loop.call(dealt.switches[2].reconnect)
    lose(2, 0.5, names[0])
    assert rates() == [2, 0, 0]
    lose(2, 0.0)  # which one of them does not have
    assert rates() == [0, 0, 0]
    dealt.switches[1].fail["set_loss"] = SwitchError("no")
    with pytest.raises(grpc.RpcError, match=f"no; it was set before at {names[0]}"):
        lose(1, 0.5)


def test_a_loss_rate_above_one_is_refused(running: Running) -> None:
    with open_grpc_channel(running.address) as channel, pytest.raises(grpc.RpcError, match="0 to 1"):
        rpc.JobsStub(channel).SetLoss(pb.SetLossRequest(port=1, rate=1.5), timeout=5)


@pytest.mark.parametrize("given", [None, "wrong"])
def test_a_wrong_token_is_refused(loop: Loop, given: str | None) -> None:
    running = Running(loop, ServiceConfig(listen="127.0.0.1:0", token="secret"))
    try:
        error = running.rank(0, 1, token=given).outcome()
        assert isinstance(error, JoinError)
        assert "token" in str(error)
        assert "\n" not in str(error)
        with open_grpc_channel(running.address) as channel, pytest.raises(grpc.RpcError) as caught:
            rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        ready([running.rank(0, 1, token="secret")])
    finally:
        running.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:7700", "10.0.0.1:7700", "[::]:7700", "example.org:7700"])
def test_other_hosts_need_tls_or_trust(listen: str, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="--tls-cert"):
        check_listen(ServiceConfig(listen=listen))
    check_listen(ServiceConfig(listen=listen, insecure=True))
    check_listen(ServiceConfig(listen=listen, tls=TlsFiles(*self_signed(tmp_path, "controller"))))


@pytest.mark.parametrize("listen", ["127.0.0.1", "7700", ":7700", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_must_have_host_and_port(listen: str) -> None:
    with pytest.raises(ListenError, match="HOST:PORT"):
        check_listen(ServiceConfig(listen=listen))


def test_a_taken_port_is_named(running: Running) -> None:
    other = Running.__new__(Running)
    with pytest.raises(ListenError, match=running.address):
        Running.__init__(other, running.loop, ServiceConfig(listen=running.address))


def test_who_is_counted_where_a_rank_has_no_answer(running: Running) -> None:
    ready([running.rank(0, 1, job="first")])  # so that the other's slots do not begin at 0
    ranks = [running.rank(rank, 3) for rank in range(3)]
    ready(ranks)
    first = running.switch.admitted[2].slots.first
    running.switch.halves[2 * first + 3] = (2**32 - 1, 0b101)
    ranks[1].session.ask(3)
    wait_until(lambda: all(rank.counted for rank in ranks), "all to be told")
    assert [rank.counted for rank in ranks] == [[pb.Counted(half=3, seq=2**32 - 1, ranks=[0, 2])]] * 3
    running.switch.fail[f"query {2 * first + 3}"] = SwitchError("broken")
    ranks[1].session.ask(3)
    wait_until(lambda: running.jobs.live[1].looking, "the look")
    wait_until(lambda: not running.jobs.live[1].looking, "its end")
    running.switch.fail[f"query {2 * first + 3}"] = RuntimeError("nobody expected it")
    ranks[1].session.ask(3)
    ranks[1].session.ask(2)
    running.switch.halves[2 * first + 2] = (2, 0)
    ranks[0].session.ask(2)
    wait_until(lambda: all(len(rank.counted) == 2 for rank in ranks), "all to be told of the other")
    assert ranks[2].counted[1] == pb.Counted(half=2, seq=2)
    assert running.controller.failure is None


@pytest.mark.parametrize(("field", "size"), [("switch", 10_000), ("switch", 3 << 20), ("job", 3 << 20)])
def test_a_request_of_any_size_has_a_short_answer(running: Running, field: str, size: int) -> None:
    first = running.rank(0, 2)
    wait_until(lambda: first.assigned, "the first rank")
    join = pb.Join(job="job", rank=1, world_size=2)
    setattr(join, field, "\x01" * size)
    with open_grpc_channel(running.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        replies = rpc.JobsStub(channel).Session(iter([pb.ClientMessage(join=join)]), timeout=10)
        if size > 16 << 10:
            with pytest.raises(grpc.RpcError) as refused:
                next(replies)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert first.is_alive()
        else:
            message = next(replies).abort.message
            assert "the name of its switch has 10000 characters" in message
            assert message in str(first.outcome())


def test_the_service_has_all_methods_of_its_description() -> None:
    assert [method.name for method in rpc.METHODS if not hasattr(Service, method.name)] == []
