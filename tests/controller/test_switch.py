# SPDX-License-Identifier: Apache-2.0
"""The controller on a real P4Runtime switch, whose ports are in the test's hands."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

from p4reduce.control.client import Assigned
from p4reduce.errors import JoinError
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Packet
from p4reduce_controller.p4runtime.election import Election
from p4reduce_controller.p4runtime.link import Link
from p4reduce_controller.p4runtime.program import FLOOD_GROUP, Program, load_schema
from p4reduce_controller.service.run import running
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import Heard, Placement, SwitchUnavailable
from p4reduce_controller.switches.frames import Endpoint, build, parse_mac
from p4reduce_controller.switches.pools import SlotRange
from tests.support.controller.bench import SWITCH, Bench, host
from tests.support.controller.proxy import Proxy
from tests.support.controller.ranks import DEADLINE, Rank, hello_packet, ready
from tests.support.controller.running import Loop, Starter, advance
from tests.support.dataplane.targets import PORTS, Target
from tests.support.waiting import wait_until


@asynccontextmanager
async def look(target: Target, *, as_first: bool = False, mtu: int = 1500) -> AsyncIterator[tuple[Link, Program]]:
    """Yield a connection of the test's own, as primary, and the program.

    as_first: whether the switch may have no program yet.
    mtu: the MTU of the links that the program is for.
    """
    program = Program(load_schema(mtu=mtu))
    link = Link(target.grpc_address, 1, program.schema, lambda *_: None)
    try:
        mastership = await link.look()
        installed = await link.become_primary(Election().id_above(mastership.election_id))
        assert as_first or not installed
        yield link, program
    finally:
        await link.close()


async def entries(link: Link, program: Program) -> list[str]:
    """Return the table of each entry, and the multicast groups."""
    tables = [entry.table_id async for entry in link.read(program.every_entry())]
    groups = [f"group {group.multicast_group_id}" async for group in link.read([fy.P4MulticastGroupEntry()])]
    return sorted(tables + groups)


def left_on(loop: Loop, target: Target) -> list[str]:
    async def work() -> list[str]:
        async with look(target) as (link, program):
            return await entries(link, program)

    return loop.run(work())


def test_a_jobs_workers_meet_in_its_slots_and_nobody_elses(either_bench: Bench) -> None:
    bench = either_bench
    before = bench.loop.run(bench.switch.outcomes())
    _, one = bench.job(2, job="one")
    _, two = bench.job(2, job="two")
    bench.round(one)
    bench.round(two)
    bench.round(one, slot=3)
    other = Assigned.FromString(one[0].SerializeToString())
    other.generation ^= 1
    bench.announce(other)
    bench.announce(one[0], slot=4)  # it has four, from 0

    def refused() -> list[int]:
        outcomes = bench.loop.run(bench.switch.outcomes())
        return [outcomes[what] - before[what] for what in ("not_admitted", "bad_slot")]

    wait_until(lambda: refused()[1], "the packets to be counted")
    assert refused() == [1, 1]


def test_what_a_job_has_sent_is_seen(either_bench: Bench) -> None:
    bench = either_bench
    _, one = bench.job(2, job="one")
    _, two = bench.job(2, job="two")
    bench.announce(one[0])
    bench.announce(one[0], slot=1)
    bench.announce(two[1])
    keys = [(job[0].job, job[0].generation) for job in (one, two)]
    wait_until(lambda: sum(c.packets for c in bench.loop.run(bench.switch.job_traffic()).values()) == 3, "all three")
    traffic = bench.loop.run(bench.switch.job_traffic())
    assert [traffic[key].packets for key in keys] == [2, 1]
    assert traffic[keys[0]].bytes == 2 * traffic[keys[1]].bytes > 0
    status = bench.look()
    assert {job.name: [(t.switch, t.packets) for t in job.traffic] for job in status.jobs} == {
        "one": [(0, 2)],
        "two": [(0, 1)],
    }


def test_the_state_of_a_half(either_bench: Bench) -> None:
    bench = either_bench
    _, assigned = bench.job(3)
    seq = assigned[0].first_seq
    before = bench.loop.run(bench.switch.query(1))
    assert (before.seq, before.bitmap) == (seq - 1 & 0xFFFFFFFF, 0)
    bench.announce(assigned[2])
    bench.announce(assigned[2])
    status = bench.received(2, Op.STATUS)
    assert status.keys[0] == 0b100
    half = bench.loop.run(bench.switch.query(0))
    assert (half.half, half.seq, half.bitmap, half.fingerprint) == (0, seq, 0b100, 0x7700)
    with pytest.raises(ValueError, match="half=1024: the switch has halves 0 to 1023"):
        bench.loop.run(bench.switch.query(1024))


def test_the_whole_switch_for_one_job(bench: Bench) -> None:
    _, assigned = bench.job(2, slots=bench.switch.layout.slots)
    bench.round(assigned, slot=bench.switch.layout.slots - 1)
    assert bench.loop.run(bench.switch.outcomes())["reset"] >= 1024


KILLED = """
import sys, time
from p4reduce.control.client import Session
session = Session(sys.argv[1])
print(session.join("job", 2, 3, slots=4).SerializeToString().hex(), flush=True)
session.wait_ready(lambda: None)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_worker_is_told_of_soon_by_both_ways(either_bench: Bench) -> None:
    bench = either_bench
    ranks = [bench.rank(rank, 3) for rank in range(2)]
    command = [sys.executable, "-c", KILLED, bench.controller.service.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as third:
        bench.hello(Assigned.FromString(bytes.fromhex(third.stdout.readline())))
        assigned = ready(ranks)
        assert third.stdout.readline() == "ready\n"
        killed = time.monotonic()
        third.kill()
        for worker in (0, 1):
            abort = bench.received(worker, Op.ABORT)
            assert (abort.job, abort.generation, abort.worker) == (assigned[0].job, assigned[0].generation, 2)
            assert abort.keys[0] == 1
            assert abort.seq << 32 | abort.fingerprint == assigned[0].abort_secret != 0
        wait_until(lambda: all(rank.aborted_at for rank in ranks), "the abort")
        assert time.monotonic() - killed < 20  # leases are longer
    assert "rank 2 was lost" in str(ranks[0].session.aborted)
    wait_until(lambda: bench.look().switches[0].slots_used == 0, "the slots to be freed")
    before = bench.loop.run(bench.switch.outcomes())["not_admitted"]
    bench.announce(assigned[0])
    wait_until(lambda: bench.loop.run(bench.switch.outcomes())["not_admitted"] > before, "the packet to be refused")


def test_a_deaf_switch_is_said_to_be_so(bench: Bench) -> None:
    bench.loop.run(bench.switch.set_loss(2, "in", 1.0))
    ranks = [bench.rank(rank, 2, timeout=30.0) for rank in range(2)]
    places = lambda: [place for job in bench.look().jobs for one in job.members for place in one.places]  # noqa: E731
    wait_until(lambda: all(rank.assigned for rank in ranks) and places(), "the switch to hear rank 0")
    wait_until(lambda: bench.loop.run(bench.switch.losses())[2, "in"], "a HELLO to be lost")
    advance(bench.loop, bench.controller, 30.0)
    for rank in ranks:
        error = rank.outcome()
        assert isinstance(error, JoinError)
        assert "rank 1 joined, but no HELLO from there reached the switch at 10.0.0.254:31314" in str(error)
    status = bench.look()
    assert [(loss.port, loss.rate) for loss in status.switches[0].losses if loss.rate] == [(2, 1.0)]
    bench.loop.run(bench.switch.set_loss(2, "in", 0.5))
    bench.loop.run(bench.switch.set_loss(2, "in", 0.0))
    bench.job(2)


def test_the_drop_rate_is_set_on_all_ports(start: Starter, target: Target) -> None:
    bench = start(Bench, target, drop_rate=1.0)
    assert set(bench.switch.loss_rates) == {(port, way) for port in range(1, PORTS + 1) for way in ("in", "out")}
    error = bench.rank(0, 1, timeout=1.5).outcome()
    assert "no HELLO" in str(error)


def test_it_forwards_as_told_and_answers_for_its_addresses(start: Starter, target: Target) -> None:
    bench = start(
        Bench,
        target,
        address=[SWITCH.ip, "10.0.1.254"],
        hosts={host(2).mac: 2},
        routes=[{"destination": "10.0.1.0/24", "port": 3, "next_hop_mac": host(3).mac}],
    )
    for ip in ("10.0.0.254", "10.0.1.254"):
        request = bytes.fromhex("ffffffffffff") + parse_mac(host(1).mac) + bytes.fromhex("08060001080006040001")
        request += parse_mac(host(1).mac) + bytes([10, 0, 0, 1]) + bytes(6) + bytes(map(int, ip.split(".")))
        target.sockets[1].send(request)
        reply = bench.frame(1, lambda frame: frame[12:14] == b"\x08\x06")
        assert reply[6:12] == parse_mac(SWITCH.mac)
        assert reply[20:22] == b"\x00\x02"
        assert reply[28:32] == bytes(map(int, ip.split(".")))

    def payload(text: bytes) -> Callable[[bytes], bool]:
        return lambda frame: text in frame

    def send(to_mac: str, to_ip: str, text: bytes) -> None:
        # Something that is not for the aggregator, so that only its Ethernet and IPv4 headers count.
        frame = build(Packet(0), host(1), Endpoint(to_mac, to_ip, 9))
        target.sockets[1].send(frame + text)

    send(host(2).mac, host(2).ip, b"to a known host")
    bench.frame(2, payload(b"to a known host"))
    send("02:00:00:00:99:99", "10.0.0.99", b"to an unknown host")
    for port in (2, 3, 4):
        bench.frame(port, payload(b"to an unknown host"))
    send(SWITCH.mac, "10.0.1.7", b"through the router")
    routed = bench.frame(3, payload(b"through the router"))
    assert (routed[:6], routed[6:12], routed[22]) == (parse_mac(host(3).mac), parse_mac(SWITCH.mac), 63)
    # Port 3 saw no frame for the known host before, and port 2 none for the router.


def test_a_worker_that_was_heard_is_a_known_host(bench: Bench) -> None:
    bench.job(2)
    bench.target.sockets[3].send(build(Packet(0), host(3), Endpoint(host(1).mac, host(1).ip, 9)) + b"known now")
    bench.target.sockets[3].send(
        build(Packet(0), host(3), Endpoint("02:00:00:00:99:99", "10.0.0.9", 9)) + b"to everyone"
    )
    bench.frame(1, lambda frame: b"known now" in frame)
    assert b"known now" not in bench.frame(2, lambda frame: b"known now" in frame or b"to everyone" in frame)


def test_a_neighbours_address_is_not_taken_from_it_and_is_forgotten_with_its_job(bench: Bench) -> None:
    ranks, _ = bench.job(1)

    def hello(assigned: Assigned) -> None:
        bench.target.sockets[2].send(build(hello_packet(assigned), host(1), SWITCH))

    bench.ranks.append(Rank(bench.controller.service.address, 0, 1, send_hello=hello, job="attacker"))
    error = bench.ranks[-1].outcome()
    assert f"its MAC address {host(1).mac} is on port 1" in str(error)
    assert "its HELLO came in on port 2" in str(error)
    bench.target.sockets[3].send(build(Packet(0), host(3), Endpoint(host(1).mac, host(1).ip, 9)) + b"for the first")
    bench.frame(1, lambda frame: b"for the first" in frame)

    async def own() -> list[str]:
        return await entries(bench.switch._linked(), bench.switch._program)

    assert "mac_addresses" in bench.loop.run(own())
    ranks[0].session.leave()
    wait_until(lambda: "mac_addresses" not in bench.loop.run(own()), "the host to be forgotten")


def test_nothing_is_left_when_it_ends(loop: Loop, target: Target) -> None:
    bench = Bench(loop, target, hosts={host(2).mac: 2})
    bench.job(2)
    bench.close()
    assert left_on(loop, target) == []


def test_what_an_earlier_controller_left_is_cleared(loop: Loop, target: Target) -> None:
    async def leave_things() -> None:
        async with look(target, as_first=True) as (link, program):
            worker = Heard(1, host(1), 9, 9, 0, 0)
            job = Placement(9, 9, SlotRange(0, 4), 2, (worker,))
            left = [
                program.job_group(job),
                *program.admissions(job),
                *program.deliveries(job),
                program.loss(1, "in", 1),
            ]
            left += [program.host(host(4).mac, 1), program.own_address("10.9.9.9", SWITCH.mac)]
            # This group is ours, with other members.
            left.append(fy.P4MulticastGroupEntry(FLOOD_GROUP, replicas=[2]))
            updates = [(+entry).encode_update(program.schema) for entry in left]
            await link.write(updates)

    loop.run(leave_things())
    assert len(left_on(loop, target)) == 7
    bench = Bench(loop, target)
    try:
        bench.loop.run(asyncio.sleep(0))

        async def own() -> list[str]:
            return await entries(bench.switch._linked(), bench.switch._program)

        assert loop.run(own()) == [f"group {FLOOD_GROUP}", "own_addresses", "own_sources"]
        bench.round(bench.job(4)[1])
    finally:
        bench.close()


def test_groups_of_another_program_send_nothing_twice(loop: Loop, start: Starter, target: Target) -> None:
    async def leave_group() -> None:
        async with look(target, as_first=True, mtu=9000) as (link, program):
            group = program.flood_group(range(1, PORTS + 1))
            await link.write([(+group).encode_update(program.schema)])

    loop.run(leave_group())
    bench = start(Bench, target)
    for text in (b"first", b"second"):
        target.sockets[1].send(build(Packet(0), host(1), Endpoint("02:00:00:00:99:99", "10.0.0.99", 9)) + text)
    bench.frame(2, lambda frame: b"first" in frame)
    assert b"second" in bench.frame(2, lambda frame: b"first" in frame or b"second" in frame)


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_a_job_that_was_kept_is_left_alone_and_what_was_not_is_cleared(
    loop: Loop, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ipv6: bool
) -> None:
    state = tmp_path / "state"
    bench = Bench(loop, target, ipv6=ipv6, state=str(state), hosts={host(4).mac: 4})
    ranks, assigned = bench.job(2, job="kept")
    others, lost = bench.job(2, job="lost")
    bench.round(assigned)
    options = {"state": str(state), "hosts": {host(4).mac: 4}, "listen": bench.controller.service.address}
    written: list[Any] = []
    write = Link.write

    async def recorded(link: Link, updates: Sequence[Any], **how: bool) -> None:
        # A default entry cannot be compared with what is there, and limits are not, so they are always written.
        written.extend(
            update
            for update in updates
            if not (update.entity.table_entry.is_default_action or update.entity.HasField("meter_entry"))
        )
        await write(link, updates, **how)

    def start_again() -> Bench:
        written.clear()
        later = Bench(loop, target, ipv6=ipv6, **options)
        later.ranks, bench.ranks = bench.ranks, []
        return later

    monkeypatch.setattr(Link, "write", recorded)
    try:
        bench.stop()
        assert written == []
        bench = start_again()
        assert written == []
        bench.round(assigned, slot=1)
        bench.stop()

        kept = json.loads(state.read_text())
        kept["jobs"] = [job for job in kept["jobs"] if job["name"] == "kept"]
        state.write_text(json.dumps(kept))
        bench = start_again()
        assert len(written) == 5  # a group, and two tables' entries of two workers
        bench.round(assigned, slot=2)
        wait_until(lambda: all(rank.aborted_at for rank in others), "the other job's ranks to be told")
        assert "does not know the job" in str(others[0].session.aborted)
        before = loop.run(bench.switch.outcomes())["not_admitted"]
        bench.announce(lost[0])
        wait_until(lambda: loop.run(bench.switch.outcomes())["not_admitted"] > before, "the packet to be refused")
        bench.round(bench.job(2, job="lost")[1])
        assert [rank.session.aborted for rank in ranks] == [None, None]
    finally:
        bench.controller.keeps_jobs = False
        bench.close()
    assert left_on(loop, target) == []


@pytest.fixture
def proxy(target: Target) -> Iterator[Proxy]:
    proxy = Proxy(target.grpc_address)
    yield proxy
    proxy.close()


def test_jobs_live_through_a_break_of_the_connection(proxy: Proxy, start: Starter, target: Target) -> None:
    bench = start(Bench, target, switch=proxy.address)
    ranks, assigned = bench.job(2)
    proxy.cut()
    wait_until(lambda: bench.switch.unavailable, "the break to be noticed")
    [switch] = bench.look().switches
    assert not switch.connected
    assert proxy.address in switch.problem
    bench.round(assigned)  # the data plane goes on by itself
    with pytest.raises(SwitchUnavailable, match="is not connected"):
        bench.loop.run(bench.switch.set_loss(1, "in", 0.5))
    proxy.mend()
    wait_until(lambda: not bench.switch.unavailable, "the connection to be back")
    bench.round(assigned, slot=1)
    assert [rank.session.aborted for rank in ranks] == [None, None]
    bench.round(bench.job(2, job="another")[1])


def test_a_job_that_dies_during_a_break_keeps_its_slots_until_the_switch_forgets_it(
    proxy: Proxy, start: Starter, target: Target
) -> None:
    bench = start(Bench, target, switch=proxy.address)
    ranks, _ = bench.job(2)
    proxy.cut()
    wait_until(lambda: bench.switch.unavailable, "the break to be noticed")
    ranks[0].session.close()
    wait_until(lambda: ranks[1].aborted_at, "the other rank to hear of it")
    assert bench.look().switches[0].slots_used == 4
    proxy.mend()
    wait_until(lambda: bench.look().switches[0].slots_used == 0, "the slots to be freed")

    async def own() -> list[str]:
        return await entries(bench.switch._linked(), bench.switch._program)

    assert not [entry for entry in bench.loop.run(own()) if entry in ("jobs", "workers", "group 1")]


def test_jobs_whose_entries_are_gone_after_a_break_are_aborted(proxy: Proxy, start: Starter, target: Target) -> None:
    bench = start(Bench, target, switch=proxy.address)
    _, kept = bench.job(2, job="kept")
    ranks, lost = bench.job(2, job="lost")
    proxy.cut()
    wait_until(lambda: bench.switch.unavailable, "the break to be noticed")

    async def remove_one() -> None:
        async with look(target) as (link, program):
            gone = [entry async for entry in link.read([fy.P4TableEntry("workers")]) if entry["job"] == lost[0].job]
            await link.write([(-gone[0]).encode_update(program.schema)])
            await link.write([(-program.own_address(SWITCH.ip, SWITCH.mac)).encode_update(program.schema)])

    bench.loop.run(remove_one())
    proxy.mend()
    wait_until(lambda: all(rank.aborted_at for rank in ranks), "the abort")
    assert " still runs, but lacks entries of the job: another P4Runtime client" in str(ranks[0].session.aborted)
    wait_until(lambda: bench.look().switches[0].slots_used == 4, "the slots to be freed")
    bench.round(kept)
    bench.round(bench.job(2, job="lost")[1])


def test_no_switch_in_time(loop: Loop, proxy: Proxy) -> None:
    proxy.cut()
    context = running(load(None, {"switch": proxy.address, "listen": "127.0.0.1:0"}), 1.5)
    with pytest.raises(
        SwitchUnavailable, match=rf"no switch after 1\.5 s: switch at {proxy.address}: connecting failed"
    ):
        loop.run(context.__aenter__())


@contextmanager
def command(target: Target, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `p4reduce controller` as a process, and yield it with the address at which it listens."""
    words = [sys.executable, "-c", "from p4reduce.commands.cli import main; main()", "controller", "--json"]
    words += ["--switch", target.grpc_address, "--listen", "127.0.0.1:0", "--address", SWITCH.ip]
    words += ["--ports", "1,2,3,4", "--metrics", "127.0.0.1:0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = json.loads(process.stdout.readline())
            assert line["ready"] is True
            yield process, line["listen"]
        finally:
            process.kill()


def lone_rank(target: Target, address: str) -> Rank:
    """Return worker 0 of a job of its own, which is ready."""

    def hello(assigned: Assigned) -> None:
        target.sockets[1].send(build(hello_packet(assigned), host(1), SWITCH))

    rank = Rank(address, 0, 1, send_hello=hello)
    ready([rank])
    return rank


@pytest.mark.parametrize(
    ("number", "has_file", "keeps"),
    [(signal.SIGTERM, False, False), (signal.SIGTERM, True, True), (signal.SIGINT, True, False)],
    ids=["terminated", "terminated with a state file", "interrupted with a state file"],
)
def test_the_command_ends_cleanly_and_keeps_jobs_after_sigterm_with_a_state_file_alone(
    loop: Loop, target: Target, tmp_path: Path, number: signal.Signals, has_file: bool, keeps: bool
) -> None:
    state = tmp_path / "state"
    with command(target, *(["--state", str(state), "--rejoin-time", "60"] if has_file else [])) as (process, address):
        rank = lone_rank(target, address)
        process.send_signal(number)
        out, error = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, ""), error
    assert not has_file or len(json.loads(state.read_text())["jobs"]) == keeps
    if keeps:
        assert "jobs" in left_on(loop, target)
        assert rank.session.aborted is None
    else:
        assert left_on(loop, target) == []
        wait_until(lambda: rank.aborted_at, "the abort")
        assert "the controller was stopped" in str(rank.session.aborted)
    rank.session.close()


def test_a_switch_that_is_away_costs_no_job_that_was_kept(
    loop: Loop, target: Target, proxy: Proxy, tmp_path: Path
) -> None:
    """A controller that cannot start leaves file and switch as they are."""
    bench = Bench(loop, target, switch=proxy.address, state=str(tmp_path / "state"), rejoin_time=60.0)
    ranks, assigned = bench.job(2)
    try:
        bench.stop()
        proxy.cut()
        options = {"switch": proxy.address, "listen": bench.controller.service.address, "address": [SWITCH.ip]}
        options |= {"state": str(tmp_path / "state"), "ports": list(range(1, PORTS + 1))}
        for _ in range(2):
            with pytest.raises(SwitchUnavailable, match="no switch after"):
                loop.run(running(load(None, options), 0.3).__aenter__())
        proxy.mend()
        later = Bench(loop, target, **options)
        later.ranks, bench = bench.ranks, later
        bench.round(assigned)
        assert [rank.session.aborted for rank in ranks] == [None, None]
    finally:
        bench.controller.keeps_jobs = False
        bench.close()
