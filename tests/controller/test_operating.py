# SPDX-License-Identifier: Apache-2.0
"""Commands for who operates a controller, and what they are made of."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import messages
from p4reduce.control.finding import Finding
from p4reduce.transport import Switch, TransportError, open_transport, routes
from p4reduce_controller.commands import access, operating, shell, views
from p4reduce_controller.commands.views import Rates
from p4reduce_controller.doctor import cli as doctor
from p4reduce_controller.doctor import host, switches
from p4reduce_controller.observability.watch import View
from p4reduce_controller.webpage.page_data import view_of
from tests.support.controller.running import Running, Starter
from tests.support.controller.users import file
from tests.support.loopbacks import bound
from tests.support.own_network import ip, own_network
from tests.support.waiting import wait_until

app = typer.Typer()
app.add_typer(operating.jobs, name="jobs")
app.add_typer(operating.switches, name="switches")
for command in (operating.top, operating.slots, shell.shell):
    app.command()(command)


def run(running: Running, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "--controller", running.address])
    assert result.exit_code == code, (result.exit_code, result.output)
    return " ".join(result.output.split())


def text(what: object) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


def test_whom_a_job_waits_for_is_named(running: Running) -> None:
    running.mute.add(0)
    running.rank(0, 3, job="gathering")
    wait_until(lambda: running.jobs.lifecycle.joins, "the rank to join")
    listed = run(running, "jobs", "list")
    assert "gathering" in listed
    assert "rank 1, rank 2 to join" in listed
    assert "not joined" in run(running, "jobs", "show", "gathering")
    [job] = json.loads(run(running, "jobs", "list", "--json"))
    assert (job["awaited"], job["awaited_for"]) == ([1, 2], "to join")
    assert "there is no job 'other'; there is gathering" in run(running, "jobs", "show", "other", code=1)


def test_who_has_not_sent_is_named_by_where_it_is(running: Running) -> None:
    running.job(2)
    [job] = running.jobs
    running.loop.call(running.jobs.looked, job, 0, pb.Counted(half=0, seq=2, ranks=[0]))
    assert "rank 1 (127.0.0.1) to send its share" in run(running, "jobs", "list")
    running.loop.call(running.jobs.looked, job, 0, pb.Counted(half=0, seq=2, ranks=[0, 1]))
    assert "to send its share" not in run(running, "jobs", "list")


def test_whose_job_is_shown_has_to_be_said_where_several_have_one(start: Starter, tmp_path: Path) -> None:
    running = start(Running, users=file(tmp_path))
    for token in ("a", "b"):
        running.rank(0, 2, token=token)
    wait_until(lambda: running.jobs.lifecycle.joins == 2, "both to join")
    as_operator = ["--token-file", str(tmp_path / "token")]
    (tmp_path / "token").write_text("o")
    (tmp_path / "token").chmod(0o600)
    said = run(running, "jobs", "show", "job", *as_operator, code=1)
    assert "job 'job': the tenants bob, vision each have a job of that name; choose one with --tenant" in said
    shown = json.loads(run(running, "jobs", "show", "job", "--tenant", "bob", "--json", *as_operator))
    assert shown["tenant"] == "bob"


def test_a_job_is_ended(running: Running) -> None:
    ranks = running.job(2)
    assert "up to 500 printable characters" in run(running, "jobs", "abort", "job", "--reason", "x" * 501, code=1)
    run(running, "jobs", "abort", "job", "--reason", "it is\nlate")
    wait_until(lambda: all(rank.session.aborted for rank in ranks), "the ranks to hear of it")
    error = ranks[0].session.aborted
    assert (error.reason, error.rank) == ("ENDED_BY_USER", None)
    assert str(error).endswith("job 'job': was ended: it is late")
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_slots_of_a_job(running: Running) -> None:
    running.job(2, slots=2)
    [job] = running.jobs
    first = job.first_seq
    running.switch.halves = {0: (first + 4, 0b11), 1: (first + 1, 0b01), 2: (first - 2, 0), 3: (first - 1, 0)}
    halves = json.loads(run(running, "slots", "job", "--json"))["halves"]
    assert [half["round"] for half in halves] == [4, 1, -1, -1]
    assert [half["ranks"] for half in halves] == [[0, 1], [0], [], []]
    assert halves[1]["missing"] == [1]
    shown = run(running, "slots", "job")
    assert "rank 0, rank 1" in shown
    assert "none yet" in shown
    assert "first=2: accepted are 0 to 1" in run(running, "slots", "job", "--first", "2", code=1)


def test_slots_of_a_job_that_is_on_no_switch(running: Running) -> None:
    running.rank(0, 2)
    wait_until(lambda: running.jobs.lifecycle.joins, "the rank to join")
    assert "is gathering, and on no switch yet" in run(running, "slots", "job", code=1)


def test_rates_are_of_counters_that_may_start_again() -> None:
    def status(**counts: int) -> pb.StatusReply:
        return pb.StatusReply(switches=[pb.Switch(name="one", outcomes=counts)])

    rates = Rates(status(added=100, dropped=50), 10.0)
    rates.update(status(added=300, dropped=8), 12.0)
    assert rates.by_switch == {"one": {"added": 100.0, "dropped": 4.0}}
    assert "added 100" in text(views.top(rates, "here"))
    rates.update(pb.StatusReply(switches=[pb.Switch(name="two", outcomes={"added": 6})]), 14.0)
    assert rates.by_switch == {"two": {"added": 3.0}}


def test_a_switch_that_drains_is_seen() -> None:
    status = pb.StatusReply(
        switches=[pb.Switch(name="a", state="Draining", problem="it is being drained", jobs=["x", "y"])]
    )
    shown = text(views.switches(status))
    assert "Draining: it is being drained" in shown
    assert "x, y" in shown


def test_a_spare_is_seen() -> None:
    spare = pb.Switch(name="a", state="Ready", spare=True, connected=True, slots=8)
    assert "Ready, spare" in text(views.switches(pb.StatusReply(switches=[spare])))
    assert switches.as_reported(spare) == Finding("switch a", "ok", "Ready, a spare, 0 of 8 slots in use")


def test_a_switch_that_knows_only_ipv4_is_seen() -> None:
    old = pb.Switch(name="a", state="Ready", connected=True, slots=8, ipv4_only=True)
    assert "its program knows only IPv4 addresses" in text(views.switch(pb.StatusReply(switches=[old]), old))
    found = "Ready, 0 of 8 slots in use; its program knows only IPv4 addresses"
    assert switches.as_reported(old) == Finding("switch a", "ok", found)


def test_addresses_of_ipv6_are_in_brackets() -> None:
    one = pb.Switch(name="a", state="Ready", ip="fd00::fe", udp_port=31314, mac="02:00:00:00:00:fe")
    place = pb.Attachment(heard=True, switch=0, port=5, ip="fd00::7", udp_port=5001)
    job = pb.Job(name="job", world_size=1, members=[pb.Member(places=[place])])
    status = pb.StatusReply(switches=[one], jobs=[job])
    assert "[fd00::fe]:31314" in text(views.switches(status))
    assert "[fd00::fe]:31314 (02:00:00:00:00:fe)" in text(views.switch(status, one))
    assert "[fd00::7]:5001 on port 5 of a" in text(views.job(status, job))
    console = Console(width=200, record=True, file=io.StringIO())
    views.show(status, console)
    shown = console.export_text()
    assert "aggregator [fd00::fe]:31314 (02:00:00:00:00:fe)" in shown
    assert "[fd00::7]:5001 on port 5" in shown
    assert view_of(View(0.0, status, {}, {}, {}), None)["switches"][0]["aggregator"] == "[fd00::fe]:31314"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "none"], "there is no switch 'none'; the switches are 127.0.0.1:31314"),
        (["remove", "127.0.0.1:31314"], "is the last one without a parent"),
        (["add", "x", "--switch", "10.0.0.1:9559", "--address", "10.0.0.1"], "the controller has no settings"),
        (["add", "x", "--uplink", "3"], "must be LEAF:PORT=SPINE"),
        (["add", "x", "--ports", "a"], "numbers separated by commas"),
        (["add", "--file", "/nowhere.toml"], "cannot read /nowhere.toml"),
    ],
)
def test_what_cannot_be_done_is_one_line(running: Running, arguments: list[str], said: str) -> None:
    assert said in run(running, "switches", *arguments, code=1)


def test_a_file_with_one_switch_is_read(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[[switches]]\nname = "x"\n')
    assert "the controller has no settings" in run(running, "switches", "add", "--file", str(file), code=1)
    file.write_text("listen = 'x'\n")
    assert "must hold exactly one [[switches]] table" in run(running, "switches", "add", "--file", str(file), code=1)


def test_reasons_of_later_controllers_are_read() -> None:
    assert messages.take_abort(pb.Abort(reason=999, message="x")).reason == "REASON_999"  # type: ignore[arg-type]


# --- the shell -------------------------------------------------------------------------------------------------------


def test_a_shell_that_is_not_there_is_told_how_to_install(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shell.VARIABLE, str(tmp_path / "it"))
    said = run(running, "shell", code=1)
    assert f"python3 -m venv {tmp_path}/it && {tmp_path}/it/bin/pip install p4runtime-shell==0.0.6" in said


def test_a_shell_is_started_at_the_switch(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "p4runtime_sh"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv(shell.VARIABLE, str(tmp_path))
    started: list[list[str]] = []

    def execve(_: Path, arguments: list[str], environment: dict[str, str]) -> None:
        started.append(arguments)
        assert {name for name in environment if name.endswith("_proxy")} == {"no_proxy"}

    monkeypatch.setattr(shell.os, "execve", execve)
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    run(running, "shell")
    run(running, "shell", "127.0.0.1:31314")
    run(running, "shell", "10.0.0.1:9559", "--device-id", "7")
    run(running, "shell", "[fe80::1%d0]:9559")
    assert [one[1:] for one in started] == [
        ["-m", "p4runtime_sh", "--grpc-addr", "fake", "--device-id", "1"],
        ["-m", "p4runtime_sh", "--grpc-addr", "127.0.0.1:31314", "--device-id", "1"],
        ["-m", "p4runtime_sh", "--grpc-addr", "10.0.0.1:9559", "--device-id", "7"],
        ["-m", "p4runtime_sh", "--grpc-addr", "[fe80::1%25d0]:9559", "--device-id", "1"],
    ]
    assert "there is no switch 'other'" in run(running, "shell", "other", code=1)


# --- the doctor ------------------------------------------------------------------------------------------------------


def test_a_narrow_way_is_found() -> None:
    found = {one.subject: one for one in host.way("127.0.0.1", 31314, 100_000, "one")}
    assert found["MTU to one"].verdict == "problem"
    assert "ip link set lo mtu 100000" in found["MTU to one"].advice
    assert "packets with their IPv4 headers are up to 100000 bytes" in found["MTU to one"].found
    assert {one.verdict for one in host.way("127.0.0.1", 31314, 1086, "one")} == {"ok"}


def test_a_way_over_ipv6() -> None:
    bound("::1").close()  # or the test is skipped
    found = {one.subject: one for one in host.way("::1", 31314, 100_000, "one")}
    assert "packets with their IPv6 headers are up to 100000 bytes" in found["MTU to one"].found
    assert {one.verdict for one in host.way("::1", 31314, 1106, "one")} == {"ok"}


@pytest.mark.root
@pytest.mark.parametrize(
    ("protocol", "network_there", "there"),
    [("IPv4", "10.9.1.0/24", "10.9.1.1"), ("IPv6", "fd00:10::/64", "fd00:10::1")],
)
def test_the_mtu_of_a_route_is_compared(protocol: str, network_there: str, there: str) -> None:
    with own_network(protocol) as network:
        locked = ["lock"] if protocol == "IPv4" else []  # IPv6 has no fragments on the way
        ip("route", "add", network_there, "dev", network.host, "mtu", *locked, "1300")
        found = {one.subject: one for one in host.way(there, 31314, 1400, "one")}
        assert found["MTU to one"].verdict == "warning"  # ranks do not use it
        assert "the route through host0 has 1300, and the interface 1500" in found["MTU to one"].found
        assert f"packets with their {protocol} headers are up to 1400 bytes" in found["MTU to one"].found
        advice = f"see `ip route get {there}` for the route's mtu, or give the controller --mtu 1300"
        assert found["MTU to one"].advice == advice
        assert {one.verdict for one in host.way(there, 31314, 1106, "one") if "MTU" in one.subject} == {"ok"}


@pytest.mark.root
def test_a_host_without_an_address_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_TENTATIVE_S", 0.1)
    with own_network("IPv6") as network:
        ip("-6", "address", "flush", "dev", network.host, "scope", "global")
        ip("-6", "route", "replace", "fd00:10::/64", "dev", network.host)
        [finding] = host.way("fd00:10::1", 31314, 1106, "one")
        assert (finding.verdict, finding.subject) == ("problem", "route to one")
        assert "it has no IPv6 address that can be used" in finding.found
        ip("-6", "route", "replace", "blackhole", "fd00:20::/64")
        [finding] = host.way("fd00:20::1", 31314, 1106, "one")
        assert "a route of this host drops them; see `ip route get fd00:20::1`" in finding.found


def test_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *more: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *more, **named)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    [finding] = host.way("::1", 31314, 1106, "one")
    assert "its kernel has no IPv6" in finding.found
    for kind in ("udp", "raw"):
        with pytest.raises(TransportError, match="its kernel has no IPv6"):
            open_transport(kind, Switch("::1", 31314, "02:00:00:00:00:01"))


def test_a_clock_that_is_wrong_is_found() -> None:
    assert [one.verdict for one in host.clock(1000.0, 1060.0) if one.subject == "clock"] == ["warning"]
    assert [one.verdict for one in host.clock(1000.0, 1000.2) if one.subject == "clock"] == ["ok"]
    assert [one for one in host.clock(0.0, 1000.0) if one.subject == "clock"] == []


def test_small_buffers_and_closed_memory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_PROC", tmp_path)
    for path, value in (("net/core/rmem_max", 212992), ("net/core/wmem_max", 1 << 26), ("kernel/yama/ptrace_scope", 2)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{value}\n")
    found = {one.subject: one for one in [*host.buffers(), *host.kernel()]}
    assert found["net.core.rmem_max"].verdict == "warning"
    assert "sysctl net.core.rmem_max=4194304" in found["net.core.rmem_max"].advice
    assert found["net.core.wmem_max"].verdict == "ok"
    assert found["memory of other ranks"].verdict == "warning"


@pytest.mark.parametrize(
    ("connected", "state", "problem", "verdict", "advice"),
    [
        (True, "Ready", "", "ok", ""),
        (True, "Draining", "it is being drained", "warning", ""),
        (True, "Cordoned", "it is being drained", "warning", ""),
        (False, "NotReady", "unreachable for 7 s: pulled", "problem", "check that its process runs"),
        (False, "NotReady", "not primary: controller 2 is", "problem", "start this one with --take-over"),
        (True, "Unschedulable", "the switch s cannot be used: pulled", "warning", ""),
        (True, "UplinkDown", "its parent spine has not heard it", "problem", "check the cable of its uplink"),
        (True, "UplinkDown", "port 9 of leaf2 toward spine is down", "problem", "check the cable of its uplink"),
    ],
)
def test_what_the_controller_says_of_a_switch(
    connected: bool, state: str, problem: str, verdict: str, advice: str
) -> None:
    found = switches.as_reported(pb.Switch(connected=connected, state=state, problem=problem))
    assert found.verdict == verdict
    assert advice in found.advice


def test_no_p4runtime_is_found() -> None:
    [found] = switches.p4runtime("127.0.0.1:1", "one", 1, None, None)
    assert (found.verdict, "127.0.0.1:1" in found.found) == ("warning", True)


@pytest.mark.parametrize("group", [operating.jobs, operating.switches], ids=["jobs", "switches"])
def test_every_command_takes_a_client_certificate(group: typer.Typer) -> None:
    """A controller may demand one of callers."""
    for name, command in typer.main.get_command(group).commands.items():  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--tls-ca", "--tls-cert", "--tls-key"} <= options, name


def test_a_command_that_goes_on_uses_a_token_that_has_been_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of some issuers expire within minutes."""
    shown: list[str | None] = []
    monkeypatch.setattr(access, "ask", lambda _, token, *__: shown.append(token))
    token = tmp_path / "token"
    token.write_text("first")
    controller = access.Access("127.0.0.1:1", token, None)
    controller.status()
    token.write_text("second")
    controller.status()
    assert shown == ["first", "second"]


def test_a_switch_is_not_added_without_a_word_where_it_is(running: Running) -> None:
    said = run(running, "switches", "add", code=1)
    assert "--switch HOST:PORT and --address IP, or --file" in said
    assert "--switch HOST:PORT and --address IP, or --file" in run(running, "switches", "add", "leaf", code=1)


def test_a_slot_that_the_job_does_not_have_is_named(running: Running) -> None:
    running.job(1)
    assert "first=99: accepted are 0 to 3" in run(running, "slots", "job", "--first", "99", code=1)
    assert "1 job, 1 rank; 1 job begun" in run(running, "top", "--once", "--interval", "0.2")


def test_what_the_doctor_says_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Finding("MTU to 10.0.0.254:9559", "problem", "a way " * 30, "do something about it " * 10),
        Finding("net.core.rmem_max", "warning", "x" * 150, "sysctl -w net.core.rmem_max=4194304"),
    ]
    monkeypatch.setattr(doctor, "_run_checks", lambda *_, **__: iter(found))
    command = typer.Typer()
    command.command()(doctor.doctor)
    lines = CliRunner().invoke(command, []).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "".join(lines).count("x") >= 150  # and nothing is cut off
    assert " ".join(lines).count("about") == 10
