# SPDX-License-Identifier: Apache-2.0
"""The service and the hosts' session together, on a switch in memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
import warnings
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from p4reduce.control import client, rpc
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.certificates import TlsFiles
from p4reduce.control.client import Session
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.control.messages import MISMATCH
from p4reduce.errors import CollectiveTimeout, JoinError
from p4reduce.join.joining import join_job, membership
from p4reduce.join.options import JoinOptions
from p4reduce.transport import TransportError
from p4reduce_controller.base.listening import ListenError, ServiceConfig, bound_server, check_listen
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.service.service import Service
from p4reduce_controller.switches.aggregator import SwitchError
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.tenants.access import ANYONE
from tests.support.certificates import self_signed
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import ready
from tests.support.controller.running import Running, Starter, advance, leave, stand_still
from tests.support.loopbacks import bound
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
    status = running.look()
    jobs = running.loop.call(lambda: f"{list(running.jobs)} {running.switch.admitted}")
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    kept = [membership(one, 2) for one in assigned]  # by hosts; the message itself is for `join` alone
    shown = f"{status} {jobs} {kept} {caplog.text}"
    assert [secret for secret in secrets if str(secret) in shown or f"{secret:x}" in shown] == []


def test_a_lost_rank_is_named_to_all_others_before_any_time_is_up(running: Running) -> None:
    ranks = running.job(3)
    lost_at = time.monotonic()
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at and ranks[2].aborted_at, "the others to hear of it")
    assert max(ranks[0].aborted_at, ranks[2].aborted_at) - lost_at < 10  # the shortest time-out
    for rank in (ranks[0], ranks[2]):
        error = rank.session.aborted
        assert (error.rank, error.reason) == (1, "WORKER_LOST")
        assert "rank 1" in str(error)
        rank.session.leave()  # nothing is left to leave
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert running.switch.aborts == [(1, 1, pb.WORKER_LOST)]
    assert running.switch.log[2:] == ["fence", "abort", "forget"]
    assert ranks[1].session.aborted is None  # its own doing


@pytest.mark.parametrize(
    ("said", "blamed", "reason", "told"),
    [
        ({}, 1, "WORKER_LOST", "rank 1 has failed: it  is full"),
        ({"rank": 0}, 0, "WORKER_LOST", "rank 0 has failed, as rank 1 reports: it  is full"),
        ({"rank": 7}, 1, "WORKER_LOST", "rank 1 has failed: "),
        ({"mismatch": True}, 1, MISMATCH, "it  is full"),
    ],
)
def test_what_has_failed_is_told_to_all_at_once(
    running: Running, said: dict[str, int], blamed: int, reason: str, told: str
) -> None:
    ranks = running.job(3)
    ranks[1].session.fail("it \nis full", **said)
    wait_until(lambda: all(rank.session.aborted for rank in ranks), "all to hear of it")
    assert not ranks[1].aborted_at  # no news to it
    for rank in ranks:
        error = rank.session.aborted
        assert (error.rank, error.reason) == (blamed, reason)
        assert told in str(error)
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_what_the_controller_stood_still_for_counts_against_nobody(start: Starter) -> None:
    """The controller is stopped while ranks leave, for longer than their time to leave."""
    running = start(Running, leave_grace=20.0)
    ranks = running.job(3)
    first = running.loop.loop.run_in_executor(None, ranks[0].session.leave)
    wait_until(lambda: any(m.leaving for m in running.look().jobs[0].members), "the first")
    stand_still(running.loop, running.controller, 60.0)
    # Meanwhile the controller looks for ranks that are over time.
    stays(lambda: [rank.session.aborted for rank in ranks] == [None] * 3, "a rank is blamed", 0.3)
    for rank in ranks[1:]:
        running.loop.loop.run_in_executor(None, rank.session.leave)
    wait_until(first.done, "all to have left")
    assert [rank.session.aborted for rank in ranks] == [None] * 3


def test_a_shorter_wait_of_the_hosts_own_names_them_too(running: Running) -> None:
    session = Session(running.address)
    session.join("job", 0, 2, timeout=30)
    wait_until(lambda: session._waiting, "the rank to be told for whom it waits")
    with pytest.raises(JoinError, match="ranks that have not joined: 1"):
        session.wait_ready(lambda: None, timeout=0.2)
    session.close()


@pytest.mark.parametrize(
    ("rank", "world_size", "options", "text"),
    [
        (0, 2, {}, "every process of the job needs a rank of its own; if another run uses this job name"),
        (1, 3, {}, "it says world_size=3, but rank 0 said 2; if another run uses this job name"),
        (5, 2, {}, "has ranks 0 to 1"),
        (1, 2, {"slots": 8}, "wants 8 slots, but rank 0 wanted 4"),
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


def test_a_switch_at_another_udp_port_is_told(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_LOG_JOINING_INTERVAL", 0.1)
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
    ranks = running.job(2)
    for rank in (1, 7):
        assert isinstance(running.rank(rank, 8 if rank else 2).outcome(), JoinError)
    error = running.rank(1, 2).outcome()
    assert "the job is ready and this rank joined it already: another run uses this job name" in str(error)
    assert [rank.session.aborted for rank in ranks] == [None, None]


def test_leaving_that_takes_too_long_names_who_is_awaited(start: Starter) -> None:
    ranks = start(Running, leave_grace=60.0).job(3)
    ranks[0].session.leave(is_last=False)  # returns once the controller has said who is awaited
    with pytest.raises(CollectiveTimeout, match="ranks that have not left: 1, 2") as caught:
        ranks[0].session.leave(timeout=0.2)
    assert caught.value.awaited == (1, 2)
    assert isinstance(caught.value, TimeoutError)


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


def test_a_first_message_that_is_no_join_is_refused(running: Running) -> None:
    with open_grpc_channel(running.address) as channel:
        call = rpc.JobsStub(channel).Session(iter([pb.ClientMessage(leave=pb.Leave())]))
        replies = list(call)
    assert [reply.abort.message for reply in replies] == ["the first message must be Join or Rejoin"]


@pytest.fixture
def over_three(start: Starter) -> Running:
    """Return a controller with three switches."""
    return start(Running, switches=3)


def test_a_job_is_dealt_over_all_switches(over_three: Running) -> None:
    ranks = [over_three.rank(rank, 2, slots=7) for rank in range(2)]
    assigned = ready(ranks)
    assert [a.slots for a in assigned] == [7, 7]
    assert [at.udp_port for at in assigned[0].aggregators] == [31314, 31315, 31316]
    for number, switch in enumerate(over_three.switches):
        placed = switch.admitted[assigned[0].job]
        assert (placed.slots.first, placed.slots.count) == (0, 3)  # 7 over 3, rounded up
        assert [worker.sender.udp_port for worker in placed.workers] == [40000 + 1000 * number, 40001 + 1000 * number]
        assert switch.log == ["install", "reset"]
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    wait_until(lambda: over_three.used() == 0, "the slots to be freed")
    for switch in over_three.switches:
        assert switch.log[2:] == ["fence", "abort", "forget"]
        assert switch.aborts == [(assigned[0].job, 1, pb.WORKER_LOST)]


def test_more_slots_than_one_switch_has(over_three: Running) -> None:
    assert ready([over_three.rank(0, 1, slots=48)])[0].slots == 48
    assert over_three.used() == 48
    assert "16 slots asked" not in str(over_three.rank(0, 1, job="two", slots=49).outcome())
    error = over_three.rank(0, 1, job="two", slots=49).outcome()
    assert "slots=49, and the 3 switches have 48" in str(error)
    error = over_three.rank(0, 1, job="two", slots=4).outcome()
    assert "2 slots asked, 0 of 16 free at the switch 127.0.0.1:31314" in str(error)


def test_a_job_that_does_not_fit_at_one_switch_takes_nothing_at_the_others(over_three: Running) -> None:
    over_three.loop.call(lambda: over_three.jobs.pools[1].take(SlotRange(0, 14)))
    error = over_three.rank(0, 1, slots=9).outcome()
    assert "3 slots asked, 2 of 16 free at the switch 127.0.0.1:31315" in str(error)
    assert over_three.used() == 14


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SwitchError("switch at fake 1: no"), "switch at fake 1: no"),
        (KeyError("surprise"), "the switch at fake 1 cannot be set up for the job: KeyError: 'surprise'"),
        # gRPC raises this in tasks that wait for a call when its channel is closed.
        (asyncio.CancelledError(), "the switch at fake 1 cannot be set up for the job: Interrupted: it was cancelled"),
    ],
    ids=["refused", "unexpected", "cancelled"],
)
@pytest.mark.parametrize("what", ["install", "reset"])
def test_a_switch_that_fails_is_named_and_the_job_taken_off_all(
    over_three: Running, what: str, error: Exception, said: str
) -> None:
    over_three.switches[1].fail[what] = error
    for rank in [over_three.rank(rank, 2) for rank in range(2)]:
        assert said in str(rank.outcome())
    wait_until(lambda: over_three.used() == 0, "the slots to be freed")
    for switch in over_three.switches:
        assert switch.log[-3:] == ["fence", "abort", "forget"]
        assert not switch.admitted
    over_three.switches[1].fail.clear()
    over_three.job(2)


def test_the_switch_that_hears_nothing_is_named(over_three: Running) -> None:
    over_three.deaf = {2}
    rank = over_three.rank(0, 1)
    places = lambda: [place for job in over_three.look().jobs for one in job.members for place in one.places]  # noqa: E731
    wait_until(lambda: len(places()) == 2, "the others to hear it")
    advance(over_three.loop, over_three.controller, 10.0)
    error = rank.outcome()
    assert isinstance(error, JoinError)
    assert "rank 0 joined, but no HELLO from there reached the switch at 127.0.0.1:31316" in str(error)
    assert "31314" not in str(error)
    assert "31315" not in str(error)


def test_slots_are_kept_until_every_switch_has_forgotten_the_job(over_three: Running) -> None:
    [rank] = over_three.job(1)
    over_three.loop.call(over_three.switches[1].disconnect)
    rank.session.close()
    wait_until(lambda: "forget" in over_three.switches[2].log, "the others to be done")
    assert over_three.used() == 6
    over_three.loop.call(over_three.switches[1].reconnect)
    wait_until(lambda: over_three.used() == 0, "the slots to be freed")


def test_who_loses_a_rank_hears_which_switch_is_away(over_three: Running) -> None:
    ranks = over_three.job(2)
    over_three.loop.call(over_three.switches[2].disconnect)
    assert [rank.session.aborted for rank in ranks] == [None, None]
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the abort")
    assert "rank 1 was lost" in str(ranks[0].session.aborted)
    assert "the switch at 127.0.0.1:31316 is unavailable: pulled" in str(ranks[0].session.aborted)
    over_three.loop.call(over_three.switches[2].reconnect)


def test_the_switch_that_lost_a_job_is_named(over_three: Running) -> None:
    rank = over_three.rank(0, 1)
    assigned = ready([rank])[0]
    over_three.loop.call(over_three.switches[1].disconnect)
    over_three.loop.call(over_three.switches[1].reconnect, frozenset({assigned.job}))
    wait_until(lambda: rank.aborted_at, "the abort")
    error = rank.session.aborted
    assert (error.rank, error.reason) == (None, "SWITCH_LOST")
    assert "the switch at fake 1 was restarted" in str(error)
    wait_until(lambda: over_three.used() == 0, "the slots to be freed")


def test_status_and_loss_of_several_switches(over_three: Running) -> None:
    over_three.job(1, slots=4)
    gathering = over_three.rank(0, 2, job="other")
    wait_until(lambda: gathering.assigned, "the second job")
    over_three.ask("SetLoss", pb.SetLossRequest(port=1, direction=pb.IN, rate=0.25, switch="fake 2"))
    over_three.ask("SetLoss", pb.SetLossRequest(port=2, direction=pb.OUT, rate=0.5))
    with pytest.raises(grpc.RpcError, match=r"switch='fake 3': accepted are .*, .*, .*; nothing was changed"):
        over_three.ask("SetLoss", pb.SetLossRequest(port=1, rate=0.1, switch="fake 3"))
    over_three.switch.ports = {1: "UP"}
    with pytest.raises(grpc.RpcError, match=r"port=2: the ports of the switch .* are 1; nothing"):
        over_three.ask("SetLoss", pb.SetLossRequest(port=2, rate=0.1, switch="fake"))
    with pytest.raises(grpc.RpcError, match="0 to 1"):
        over_three.ask("SetLoss", pb.SetLossRequest(port=1, rate=1.5))
    status = over_three.ask("Status", pb.StatusRequest())
    assert [(job.name, job.state, job.slots) for job in status.jobs] == [("job", "ready", 4), ("other", "gathering", 4)]
    assert [(one.address, one.connected, one.slots, one.slots_used) for one in status.switches] == [
        ("fake", True, 16, 4),
        ("fake 1", True, 16, 4),
        ("fake 2", True, 16, 4),
    ]
    assert [switch.outcomes["hello"] for switch in status.switches] == [7, 7, 7]
    assert [[(one.port, one.rate, one.lost) for one in switch.losses] for switch in status.switches] == [
        [(2, 0.5, 3)],
        [(2, 0.5, 3)],
        [(1, 0.25, 3), (2, 0.5, 3)],
    ]
    assert [place.udp_port for place in status.jobs[0].members[0].places] == [40000, 41000, 42000]
    assert [(pool.switch, pool.first) for pool in status.jobs[0].pools] == [(0, 0), (1, 0), (2, 0)]


def test_loss_is_set_at_all_chosen_switches_or_at_none(over_three: Running) -> None:
    names = [one.name for one in over_three.controller.inventory.members.values()]
    over_three.switches[0].ports = {1: "UP", 2: "UP"}
    over_three.switches[1].ports = {1: "UP"}

    def lose(port: int, rate: float, switch: str = "") -> None:
        over_three.ask("SetLoss", pb.SetLossRequest(port=port, rate=rate, switch=switch))

    def rates() -> list[int]:
        return [sum(rate > 0 for rate in one.loss_rates.values()) for one in over_three.switches]

    with pytest.raises(grpc.RpcError, match=f"port=2: the ports of the switch {names[1]} are 1; nothing"):
        lose(2, 0.5)
    over_three.loop.call(over_three.switches[2].disconnect)
    with pytest.raises(grpc.RpcError, match=f"the switch {names[2]} is unavailable: pulled"):
        lose(1, 0.5)
    assert rates() == [0, 0, 0]
    over_three.loop.call(over_three.switches[2].reconnect)
    lose(2, 0.5, names[0])
    assert rates() == [2, 0, 0]
    lose(2, 0.0)  # which one of them does not have
    assert rates() == [0, 0, 0]
    over_three.switches[1].fail["set_loss"] = SwitchError("no")
    with pytest.raises(grpc.RpcError, match=f"no; it was set before at {names[0]}"):
        lose(1, 0.5)


@pytest.mark.parametrize("listen", ["0.0.0.0:7700", "10.0.0.1:7700", "[::]:7700", "example.org:7700"])
def test_other_hosts_need_tls_or_trust(listen: str, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="--tls-cert"):
        check_listen(ServiceConfig(listen=listen))
    check_listen(ServiceConfig(listen=listen, insecure=True))
    check_listen(ServiceConfig(listen=listen, tls=TlsFiles(*self_signed(tmp_path, "controller"))))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[0::1]:0", "[::ffff:127.0.0.1]:0", "localhost:0"])
def test_this_host_needs_neither(listen: str) -> None:
    check_listen(ServiceConfig(listen=listen))


@pytest.mark.parametrize("listen", ["127.0.0.1", "7700", ":7700", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_must_have_host_and_port(listen: str) -> None:
    with pytest.raises(ListenError, match="HOST:PORT"):
        check_listen(ServiceConfig(listen=listen))


async def test_the_address_is_shown_in_its_canonical_form() -> None:
    bound("::1").close()  # or the test is skipped
    server, address = bound_server(ServiceConfig(listen="[0:0::1]:0"), [])
    assert address.startswith("[::1]:")
    await server.stop(None)


def test_who_is_counted_where_a_rank_has_no_answer(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ready([running.rank(0, 1, job="first")])  # so that the other's slots do not begin at 0
    ranks = running.job(3)
    first = running.switch.admitted[2].slots.first
    running.switch.halves[2 * first + 3] = (2**32 - 1, 0b101)
    ranks[1].session.ask(3)
    wait_until(lambda: all(rank.counted for rank in ranks), "all to be told")
    assert [rank.counted for rank in ranks] == [[pb.Counted(half=3, seq=2**32 - 1, ranks=[0, 2])]] * 3
    running.switch.fail[f"query {2 * first + 3}"] = SwitchError("broken")
    ranks[1].session.ask(3)
    wait_until(lambda: "cannot find out what a rank waits for: broken" in caplog.text, "the look")
    wait_until(lambda: not running.jobs.live[1].looking, "its end")
    running.switch.fail[f"query {2 * first + 3}"] = RuntimeError("nobody expected it")
    ranks[1].session.ask(3)
    ranks[1].session.ask(2)
    running.switch.halves[2 * first + 2] = (2, 0)
    ranks[0].session.ask(2)
    wait_until(lambda: all(len(rank.counted) == 2 for rank in ranks), "all to be told of the other")
    assert ranks[2].counted[1] == pb.Counted(half=2, seq=2)
    assert running.controller.failure is None


def test_the_service_has_all_methods_of_its_description() -> None:
    assert [method.name for method in rpc.METHODS if not hasattr(Service, method.name)] == []


def test_a_change_of_switches_that_the_end_of_the_controller_overtakes_leaves_no_warning() -> None:
    async def overtaken() -> None:
        inventory = Inventory([FakeSwitch()])
        controller = Controller(inventory, Jobs(inventory), ServiceConfig(listen="127.0.0.1:0"))
        async with controller.operations._changing:  # another change is under way
            request = pb.AddSwitchRequest(settings="{}")
            asked = asyncio.ensure_future(controller.operations.add(request, ANYONE, "ipv4:127.0.0.1:1"))
            await asyncio.sleep(0.01)
            await controller.tasks.close()
        with pytest.raises(asyncio.CancelledError):
            await asked

    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(overtaken())
        gc.collect()
    assert [str(one.message) for one in found if one.category is RuntimeWarning] == []
