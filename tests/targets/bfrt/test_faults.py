# SPDX-License-Identifier: Apache-2.0
"""A Tofino that `p4reduce switch` drives, when things fail. The program is made up, and the server the tests' own."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import ports as ports_module
from p4reduce_targets.bfrt import switch as switch_module
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, BindRefused, Client
from p4reduce_targets.bfrt.ports import PortRequest
from p4reduce_targets.bfrt.switch import ProgramRefused, Tofino, TofinoSwitch, connections
from p4reduce_targets.dataplane import Call, DataPlaneLost, Exact, Key, Lpm
from p4reduce_targets.ports import PortError
from tests.support.bfrt.server import Server
from tests.support.dataplane.targets import SocketPort
from tests.support.waiting import stays, wait_until
from tests.targets.bfrt import made_up

PROGRAM = made_up.program(cpu_port=192)
FOLDER = Path("/of/the/build")
KEY: Key = (Exact(300), Lpm(0x0A000000, 8))
CALL = Call("Ingress.admit", (7, 0xABC))


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server whose device has two pipes: its ports 2/0 and 3/0 are 4 and 8."""
    with Server(made_up.device(PROGRAM)) as server:
        yield server


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls, attempts and reads of links short."""
    monkeypatch.setattr(switch_module, "Client", functools.partial(Client, timeout_s=5.0))
    monkeypatch.setattr(switch_module, "RETRY_S", 0.02)
    monkeypatch.setattr(ports_module, "_POLL_S", 0.02)
    monkeypatch.setattr(ports_module, "_LOG_AFTER_S", 0.05)


def tofino(server: Server, *ports: str, program: pb.ForwardingPipelineConfig = PROGRAM) -> Tofino:
    def open_cpu_port(number: int) -> SocketPort:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        return SocketPort(number, ours)

    return Tofino(server.address, program, FOLDER, [PortRequest.parse(port) for port in ports], open_cpu_port)


class Connecting:
    """The loop of `p4reduce switch`, in a thread, without a P4Runtime server."""

    def __init__(self, wanted: Tofino) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.switch: TofinoSwitch | None = None
        self.count = 0
        self._wanted = wanted
        self.thread = threading.Thread(target=self._run, name="connecting")
        self.thread.start()

    def _run(self) -> None:
        try:
            for switch in connections(self._wanted, self.ended):
                self.count, self.switch = self.count + 1, switch
                switch.run(self.ended)
                self.switch = None
        except Exception as error:
            self.error = error

    def next(self, number: int = 1) -> TofinoSwitch:
        """Return the switch of this connection, counted from 1."""
        return wait_until(lambda: self.switch if self.count == number else None, lambda: self.error or "a connection")

    def end(self, within: float = 4.5) -> None:
        """End as by Ctrl-C, and check that this takes no longer: 2 s, and what a busy machine adds."""
        self.ended.set()
        self.thread.join(within)
        assert not self.thread.is_alive(), f"still there after {within:g} s"


@contextmanager
def connecting(wanted: Tofino) -> Iterator[Connecting]:
    loop = Connecting(wanted)
    try:
        yield loop
        loop.end()
    finally:
        loop.ended.set()
        loop.thread.join(30)


def warnings(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [message for message in caplog.messages if part in message]


def entries(server: Server) -> Sequence[object]:
    plane = server.device.plane
    assert isinstance(plane, made_up.Plane)
    return list(plane.entries)


def written(switch: TofinoSwitch) -> None:
    """Run the program with an entry, as a controller does."""
    plane = switch.load(PROGRAM.SerializeToString())
    with switch.exclusive():
        switch.run_program(plane)
        plane.insert("Ingress.jobs", KEY, 0, CALL)


class TestStart:
    def test_binds_before_it_reads_or_writes(self, server: Server) -> None:
        with suppress(BfrtError), TofinoSwitch(tofino(server, "2/0:100G")):
            pass
        calls = [call for call in server.calls if call in ("set_config", "read", "write")]
        assert calls[0] == "set_config"
        assert "write" in calls

    def test_installs_the_program_where_there_is_none(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        server.restart()
        with TofinoSwitch(tofino(server, "2/0:100G")) as switch:
            written(switch)
            assert len(entries(server)) == 1
        assert warnings(caplog, "has no program: made_up is installed, which takes seconds")

    def test_refuses_another_program_and_names_both(self, server: Server) -> None:
        other = made_up.program(192)
        other.p4_name = "other"
        server.restart(made_up.for_server(other))
        with pytest.raises(ProgramRefused, match=r"runs other, not made_up: start .* configuration in /of/the/build"):
            TofinoSwitch(tofino(server))

    def test_refuses_another_build(self, server: Server) -> None:
        other = made_up.program(192)
        other.profiles[0].binary = b"2"
        server.restart(made_up.for_server(other))
        with pytest.raises(ProgramRefused, match="runs another build of made_up than /of/the/build has"):
            TofinoSwitch(tofino(server))

    def test_refuses_a_program_for_another_cpu_port(self, server: Server) -> None:
        program = made_up.program(320)
        server.restart(made_up.for_server(program))
        with pytest.raises(PortError, match="the program is for CPU port 320, and the board"):
            TofinoSwitch(tofino(server, program=program))

    def test_refuses_a_port_that_the_board_lacks(self, server: Server) -> None:
        with pytest.raises(PortError, match="--port 99/0:10G:none: the front panel has no port 99/0"):
            TofinoSwitch(tofino(server, "99/0:10G"))
        assert not server.clients

    def test_a_refused_start_leaves_no_client(self, server: Server) -> None:
        server.device.fixed_schema = b"[]"
        with pytest.raises(BfrtError, match=r"BF Runtime server at .*: a schema of BF Runtime .* is a JSON object"):
            TofinoSwitch(tofino(server))
        assert not server.clients

    @pytest.mark.parametrize("ports", [("2/0:100G",), ("2/0:100G", "33/0:10G")])
    def test_tells_of_an_ethernet_cpu_port_that_nobody_added(
        self, server: Server, ports: tuple[str, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        program = made_up.program(64)
        server.restart(made_up.for_server(program))
        with TofinoSwitch(tofino(server, *ports, program=program)):
            pass
        told = warnings(caplog, "CPU port 64 of the program is an Ethernet port that is not enabled: add --port 64:10G")
        assert len(told) == (len(ports) == 1)


class TestPackets:
    def test_packets_of_others_are_dropped_and_told_once(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        wanted = tofino(server)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wanted = Tofino(wanted.address, PROGRAM, FOLDER, [], lambda number: SocketPort(number, ours))
        heard: list[bytes] = []
        with theirs, TofinoSwitch(wanted) as switch:
            switch.on_packet_in = heard.append
            for frame in (b"\x33\x33 from a kernel", b"\x00\x07 first", b"\xff\xff broadcast", b"\x01\x07 second"):
                theirs.send(frame)
            wait_until(lambda: len(heard) == 2, lambda: heard)
            assert heard == [b"\x00\x07 first", b"\x01\x07 second"]
            assert switch.foreign_frames == 2
            switch.packet_out(b"out")
            assert theirs.recv(100) == b"out"
        assert len(warnings(caplog, "does not come from the program, and is dropped")) == 1


class TestPrograms:
    def test_refuses_another_build_of_a_controller(self, server: Server) -> None:
        other = made_up.program(192)
        other.profiles[0].binary = b"2"
        with (
            TofinoSwitch(tofino(server)) as switch,
            pytest.raises(ValueError, match="another build of made_up than the switch runs; start it with --pipeline"),
        ):
            switch.load(other.SerializeToString())

    def test_begins_without_what_an_earlier_run_left(self, server: Server) -> None:
        with TofinoSwitch(tofino(server, "2/0:100G")) as switch:
            written(switch)
        assert len(entries(server)) == 1
        with TofinoSwitch(tofino(server, "2/0:100G")) as switch:
            plane = switch.load(PROGRAM.SerializeToString())
            switch.run_program(plane)
            assert entries(server) == []

    def test_a_refused_start_of_a_program_leaves_none(self, server: Server) -> None:
        server.device.limits["pipe.Ingress.jobs"] = 0
        with TofinoSwitch(tofino(server)) as switch:
            plane = switch.load(PROGRAM.SerializeToString())
            plane.insert("Ingress.jobs", KEY, 0, CALL)
            with pytest.raises(DataPlaneLost, match=r"the program runs without .*Ingress\.jobs.* Not enough space"):
                switch.run_program(plane)
            assert switch.lost is None

    def test_a_switch_that_is_lost_is_unavailable_for_reads_as_well(self, server: Server) -> None:
        """The P4Runtime server could answer these itself, with entries that the switch may not have."""
        with TofinoSwitch(tofino(server)) as switch:
            written(switch)
            server.end_streams()
            wait_until(lambda: switch.lost, "the loss")
            with pytest.raises(DataPlaneLost, match=server.address), switch.exclusive():
                pass


@pytest.mark.usefixtures("short_timeouts")
class TestConnections:
    """`connections` tells each cause once, and tries again."""

    def test_a_server_that_is_not_there_at_first(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.stop()
        with connecting(tofino(server)) as loop:
            wait_until(lambda: warnings(caplog, "connection refused"), "a warning")
            stays(lambda: loop.switch is None, "connected", 0.2)
            server.restart(made_up.for_server(PROGRAM))
            loop.next()
        assert len(warnings(caplog, "connection refused; check that bf_switchd runs there")) == 1
        server.stop()
        monkeypatch.setattr(switch_module, "START_TIMEOUT_S", 0.2)
        with connecting(tofino(server)) as loop:
            wait_until(lambda: loop.error, "the end")
        assert isinstance(loop.error, BfrtLost)
        assert server.address in str(loop.error)

    def test_a_server_that_hangs_at_first(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(switch_module, "Client", functools.partial(Client, timeout_s=1.0))
        server.faults.hang.set()
        with connecting(tofino(server)) as loop:
            wait_until(lambda: warnings(caplog, "no answer in 1 s; check that bf_switchd"), "a warning")
            server.faults.hang.clear()
            loop.next()

    def test_a_server_that_hangs_later(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        with connecting(tofino(server, "2/0:100G")) as loop:
            written(switch := loop.next())
            switch._client._timeout_s = 1.0
            server.faults.hang.set()
            wait_until(lambda: warnings(caplog, "Read: no answer in time"), "the loss")
            server.faults.hang.clear()
            switch = loop.next(2)
            switch.run_program(switch.load(PROGRAM.SerializeToString()))
            assert entries(server) == []

    def test_a_server_that_dies_within_a_batch(self, server: Server) -> None:
        with connecting(tofino(server)) as loop:
            switch = loop.next()
            written(switch)
            plane = switch.load(PROGRAM.SerializeToString())
            switch.run_program(plane)
            server.faults.die_after = 2
            keys: list[Key] = [(Exact(number), Lpm(0, 0)) for number in range(5)]
            with pytest.raises(DataPlaneLost, match=server.address), plane.batch():
                _ = [plane.insert("Ingress.jobs", key, 0, CALL) for key in keys]
            with pytest.raises(DataPlaneLost):
                plane.insert("Ingress.jobs", KEY, 0, CALL)
            server.faults.die_after = None
            server.restart(made_up.for_server(PROGRAM))
            written(loop.next(2))
            assert len(entries(server)) == 1

    def test_a_stream_that_ends(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        with connecting(tofino(server)) as loop:
            written(loop.next())
            server.end_streams()
            written(loop.next(2))
            assert len(entries(server)) == 1
        assert len(warnings(caplog, "the P4Runtime server is closed until it is there again")) == 1

    @pytest.mark.parametrize("program", [PROGRAM, None])
    def test_a_server_that_restarts(self, server: Server, program: pb.ForwardingPipelineConfig | None) -> None:
        with connecting(tofino(server, "2/0:100G")) as loop:
            written(loop.next())
            server.restart(made_up.for_server(program) if program is not None else None)
            written(loop.next(2))
            assert len(entries(server)) == 1
            assert set(server.device.ports.added) == {4}

    def test_a_server_that_restarts_with_another_program(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = made_up.program(192)
        other.profiles[0].binary = b"2"
        with connecting(tofino(server)) as loop:
            loop.next()
            server.restart(made_up.for_server(other))
            wait_until(lambda: warnings(caplog, "another build of made_up than /of/the/build has"), "a warning")
            begun = len(server.calls)
            wait_until(lambda: len(server.calls) > begun + 10, "more attempts")
            server.restart(made_up.for_server(PROGRAM))
            loop.next(2)
        assert len(warnings(caplog, "another build of made_up")) == 1

    def test_another_program_at_first_is_an_error(self, server: Server) -> None:
        server.restart(made_up.for_server(made_up.CONFIG))
        with connecting(tofino(server)) as loop:
            wait_until(lambda: isinstance(loop.error, ProgramRefused), lambda: loop.error)

    def test_another_client_that_has_the_program(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        holder = Client(server.address, timeout_s=5)
        holder.bind(PROGRAM.p4_name)
        with connecting(tofino(server)) as loop:
            text = f"client {holder.client_id} of the BF Runtime server at {server.address} is bound to made_up"
            wait_until(lambda: warnings(caplog, text), "a warning")
            begun = len(server.calls)
            wait_until(lambda: len(server.calls) > begun + 10, "more attempts")
            holder.close()
            written(loop.next())
        assert len(warnings(caplog, text)) == 1

    def test_another_client_that_stays(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(switch_module, "START_TIMEOUT_S", 0.2)
        holder = Client(server.address, timeout_s=5)
        holder.bind(PROGRAM.p4_name)
        with connecting(tofino(server)) as loop:
            wait_until(lambda: isinstance(loop.error, BindRefused), lambda: loop.error)
        holder.close()

    def test_another_client_that_installs_a_program(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        with connecting(tofino(server)) as loop:
            written(loop.next())
            other = Client(server.address, timeout_s=5)
            other.install(PROGRAM)
            other.close()
            written(loop.next(2))
        assert warnings(caplog, "another client of the BF Runtime server")

    def test_a_cpu_interface_that_is_away_for_some_time(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        plain, away = tofino(server), threading.Event()

        def open_cpu_port(number: int) -> SocketPort:
            if away.is_set():
                raise PortError("--cpu-interface cpu0: there is none")
            port = plain.open_cpu_port(number)
            assert isinstance(port, SocketPort)
            return port

        wanted = Tofino(server.address, PROGRAM, FOLDER, [], open_cpu_port)
        with connecting(wanted) as loop:
            loop.next()
            away.set()
            server.restart(made_up.for_server(PROGRAM))
            wait_until(lambda: warnings(caplog, "--cpu-interface cpu0: there is none; trying again"), "a warning")
            away.clear()
            loop.next(2)
        assert len(warnings(caplog, "there is none")) == 1

    def test_links_are_followed_and_told(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        ports = server.device.ports
        ports.set_partner(8, present=False)
        with connecting(tofino(server, "2/0:100G", "3/0:100G")) as loop:
            switch = loop.next()
            wait_until(lambda: warnings(caplog, "port 3/0: its link is DOWN"), "a warning of the link that is down")
            ports.set_partner(8, present=True)
            wait_until(lambda: warnings(caplog, "port 3/0: its link is UP"), "the link to be up")
            del ports.added[4]
            wait_until(lambda: warnings(caplog, "port 2/0: somebody has removed it from the switch"), "a warning")
            assert switch.ports[4].interface.state() == "NOT_PRESENT"
            assert switch.lost is None
        assert len(warnings(caplog, "port 2/0")) == 1

    def test_a_slow_server(self, server: Server) -> None:
        server.faults.slow_s = 0.2
        with connecting(tofino(server, "2/0:100G")) as loop:
            written(loop.next())
            assert len(entries(server)) == 1


class TestEnd:
    """Ctrl-C ends in 2 s, whatever is under way."""

    def test_while_the_server_is_not_there(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        server.stop()
        with connecting(tofino(server)):
            wait_until(lambda: warnings(caplog, "connection refused"), "a warning")

    def test_while_it_hangs_at_first(self, server: Server) -> None:
        server.faults.hang.set()
        with connecting(tofino(server)):
            wait_until(lambda: "stream" in server.calls, "the stream")

    @pytest.mark.parametrize("call", ["get_config", "set_config", "read", "write"])
    def test_while_a_call_hangs_at_the_start(self, server: Server, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = server._begin

        def begin(name: str) -> None:
            if name == call:
                server.faults.hang.set()
            plain(name)

        monkeypatch.setattr(server, "_begin", begin)
        with connecting(tofino(server, "2/0:100G")) as loop:
            wait_until(server.faults.hang.is_set, "the call")
        assert loop.error is None

    def test_during_an_installation(self, server: Server) -> None:
        server.restart()
        server.faults.install_s = 5.0
        with connecting(tofino(server)) as loop:
            wait_until(lambda: server.installing, "the installation")
        assert loop.error is None

    def test_while_another_client_has_the_program(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        holder = Client(server.address, timeout_s=5)
        holder.bind(PROGRAM.p4_name)
        with connecting(tofino(server)):
            wait_until(lambda: warnings(caplog, "is bound to made_up"), "a warning")
        holder.close()

    def test_while_a_write_hangs(self, server: Server) -> None:
        lost: list[str] = []

        def write(switch: TofinoSwitch) -> None:
            try:
                written(switch)
            except DataPlaneLost as error:
                lost.append(str(error))

        with connecting(tofino(server)) as loop:
            switch = loop.next()
            server.faults.hang.set()
            threads = [threading.Thread(target=write, args=(switch,)) for _ in range(3)]
            begun = len(server.calls)
            for thread in threads:
                thread.start()
            wait_until(lambda: len(server.calls) > begun, "the write")
            begun_at = time.monotonic()
        for thread in threads:
            thread.join(10)
        assert len(lost) == 3
        assert time.monotonic() - begun_at < 5

    def test_a_lost_stream_ends_a_write_that_hangs(self, server: Server) -> None:
        """Otherwise the P4Runtime server would wait for it when it closes."""
        with TofinoSwitch(tofino(server)) as switch:
            server.faults.hang.set()
            timer = threading.Timer(0.3, server.end_streams)
            timer.start()
            begun = time.monotonic()
            with pytest.raises(DataPlaneLost):
                written(switch)
            assert time.monotonic() - begun < 5
            timer.join()
