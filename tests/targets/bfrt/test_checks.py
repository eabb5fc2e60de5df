# SPDX-License-Identifier: Apache-2.0
"""`p4reduce doctor --bfrt`: what is missing on a switch with a Tofino."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from p4reduce.control.finding import Finding
from p4reduce_targets import interfaces
from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import checks
from p4reduce_targets.bfrt.client import Client
from p4reduce_targets.bfrt.ports import PortRequest, open_ports
from p4reduce_targets.bfrt.schema import Schema
from p4reduce_targets.ports import PortError
from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt.device import Device
from tests.support.bfrt.server import Server
from tests.targets.bfrt import made_up, schemas


def build(*annotations: str, binary: bytes = b"1") -> pb.ForwardingPipelineConfig:
    """Return a device config of p4reduce, with annotations on its counter of outcomes."""
    profile = pb.ForwardingPipelineConfig.Profile(profile_name="pipe", context=b"{}", binary=binary)
    schema = schemas.outcomes(*annotations)
    return pb.ForwardingPipelineConfig(p4_name="p4reduce", bfruntime_info=schema, profiles=[profile])


BUILD = build("@cpu_port(192)", "@recirculation_port(64)")


def device(config: pb.ForwardingPipelineConfig | None = BUILD) -> Device:
    """Return a device with two pipes: its ports 2/0 and 3/0 are 4 and 8."""
    made = made_up.device(None)
    if config is not None:
        made.install(bfrt.ForwardingPipelineConfig.FromString(config.SerializeToString()))
    return made


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(device()) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p4reduce.bin").write_bytes(BUILD.SerializeToString())
    return tmp_path


def look(server: Server | str, folder: Path | None = None, ports: tuple[str, ...] = ()) -> dict[str, Finding]:
    address = server if isinstance(server, str) else server.address
    return {one.subject: one for one in checks.check_switch(address, folder, None, ports)}


def opened(server: Server, *texts: str) -> None:
    """Do what `p4reduce switch` does when it starts, and end."""
    with closing(Client(server.address, timeout_s=5)) as client:
        client.bind("p4reduce")
        schema = Schema.parse(client.running().non_p4_config.bfruntime_info)
        open_ports(client, schema, BUILD, [PortRequest.parse(text) for text in texts])


def test_a_switch_that_is_ready(server: Server, folder: Path) -> None:
    opened(server, "2/0:100G:rs")
    found = look(server, folder, ("2/0:100G:rs",))
    del found["client of the program"]  # nobody
    assert {subject: one.verdict for subject, one in found.items()} == dict.fromkeys(
        ["build", "BF Runtime", "program", "CPU port", "second pass", "port 2/0"], "ok"
    )
    assert found["program"].found.endswith(f"built for CPU port 192: the build in {folder}")
    assert found["second pass"].found == "ports 64, 192 recirculate"
    assert found["port 2/0"].found == "4: 100G:rs, up"


def test_nobody_has_set_it_up(server: Server) -> None:
    found = look(server, ports=("2/0:100G",))
    assert found["client of the program"].verdict == "warning"
    assert found["second pass"].found == "ports 64, 192 do not recirculate"
    assert found["port 2/0"] == Finding(
        "port 2/0", "warning", "4: it is not added", "start `p4reduce switch --target tofino`"
    )
    assert look(server)["ports"].found == "none is enabled"


def test_a_held_program_says_by_whom(server: Server) -> None:
    with closing(Client(server.address, timeout_s=5)) as client:
        client.bind("p4reduce")
        found = look(server, ports=("2/0:100G",))
        assert found["client of the program"].found.startswith(f"client {client.client_id} holds it")
    assert found["CPU port and ports"].verdict == "skipped"
    assert "port 2/0" not in found


def test_the_program_is_free_again(server: Server) -> None:
    look(server)
    opened(server, "2/0:100G:rs")


@pytest.mark.parametrize(
    ("partner", "text", "verdict", "says"),
    [
        (False, "2/0:100G:rs", "problem", "4: its link is down"),
        (True, "2/0:40G:fc", "warning", "4: it is 100G:rs; --port 2/0:40G:fc"),
        (True, "3/0:100G", "warning", "8: it is not added"),
    ],
)
def test_ports(server: Server, partner: bool, text: str, verdict: str, says: str) -> None:
    opened(server, "2/0:100G:rs")
    server.device.ports.set_partner(4, present=partner)
    found = look(server, ports=(text,))[f"port {text.partition(':')[0]}"]
    assert (found.verdict, found.found) == (verdict, says)
    assert look(server)["ports"].found == "enabled: 2/0 (4, 100G:rs)"


def test_ports_that_cannot_be(server: Server) -> None:
    assert "the front panel has no port 99/0" in look(server, ports=("99/0:10G",))["ports"].found
    with pytest.raises(PortError, match="accepted are NAME:SPEED"):
        checks.check_switch(server.address, None, None, ["99/0"])


def test_another_build(server: Server, tmp_path: Path) -> None:
    (tmp_path / "p4reduce.bin").write_bytes(build("@cpu_port(192)", binary=b"2").SerializeToString())
    found = look(server, tmp_path)["program"]
    assert found.verdict == "problem"
    assert f"another build than that in {tmp_path}" in found.found
    assert "no such file" in look(server, tmp_path / "none")["build"].found.lower()


@pytest.mark.parametrize(
    ("config", "subject", "verdict", "says"),
    [
        (None, "program", "warning", "bf_switchd has no program"),
        (made_up.CONFIG, "program", "problem", "bf_switchd runs made_up: the program does not say"),
        (build("@cpu_port(320)"), "CPU port", "problem", "the program is for CPU port 320, and the board"),
        (build("@cpu_port(64)"), "CPU port", "warning", "64, an Ethernet port that is not enabled"),
    ],
)
def test_other_programs(config: pb.ForwardingPipelineConfig | None, subject: str, verdict: str, says: str) -> None:
    with Server(device(config)) as server:
        found = look(server)[subject]
    assert found.verdict == verdict
    assert found.found.startswith(says)


def test_a_switch_without_its_driver() -> None:
    with Server(device()) as server:
        address = server.address
    assert look(address)["BF Runtime"].verdict == "problem"
    assert "check that bf_switchd runs there" in look(address)["BF Runtime"].found


@pytest.mark.parametrize(
    ("up", "ipv6", "said"),
    [
        (True, "1", [("ok", "it is up")]),
        (True, "0", [("ok", "it is up"), ("warning", "IPv6 is on, so the kernel sends packets of its own there")]),
        (False, None, [("problem", "it is down")]),
    ],
)
def test_the_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, up: bool, ipv6: str | None, said: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(interfaces, "check_type", lambda *_: None)
    monkeypatch.setattr(interfaces, "is_up", lambda *_: up)
    monkeypatch.setattr(checks, "_IPV6", tmp_path)
    if ipv6 is not None:
        (tmp_path / "cpu0").mkdir()
        (tmp_path / "cpu0" / "disable_ipv6").write_text(f"{ipv6}\n")
    assert [(one.verdict, one.found) for one in checks._interface("cpu0")] == said


@pytest.mark.parametrize(("name", "says"), [("no-such-if", "no such device"), ("lo", "is the loopback")])
def test_no_such_interface(name: str, says: str) -> None:
    (found,) = checks._interface(name)
    assert found.verdict == "problem"
    assert says in found.found.lower()


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p4reduce", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(server: Server) -> None:
    """It checks the switch alone, and its exit status tells of problems."""
    done = doctor("--bfrt", server.address, "--port", "99/0:10G", "--json")
    assert done.returncode == 1
    assert [one["subject"] for one in json.loads(done.stdout)][:2] == ["BF Runtime", "program"]
    assert doctor("--bfrt", server.address).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--port", "1/0:10G"], "needs --bfrt"), (["--bfrt", "127.0.0.1:1", "--port", "1/0"], "accepted are")],
)
def test_options_that_are_refused(arguments: list[str], says: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
