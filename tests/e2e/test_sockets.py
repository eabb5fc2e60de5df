# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md lists every socket by which somebody can be reached; whatever else is open is found here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from p4reduce_bench.processes import network
from tests.support.cluster.stack import Stack
from tests.support.own_network import Namespace

Row = tuple[str, str, str]
SECURITY = Path(__file__).parents[2] / "SECURITY.md"
RANK = """
import sys
import numpy as np
from p4reduce import Communicator
with Communicator(job="sockets", transport="udp", timeout=60) as communicator:
    communicator.allreduce(np.ones(1000, np.float32))
    print("{}", flush=True)
    sys.stdin.read()
"""


class Open(NamedTuple):
    """An open socket. kind: TCP, UDP, Unix or packet. at: "ADDRESS:PORT", or a path. to: its peer, if any."""

    kind: str
    at: str
    to: str


# The names that ss(8) has for kinds. TCP and Unix sockets count if they listen.
KINDS = {"tcp": "TCP", "udp": "UDP", "u_str": "Unix", "p_raw": "packet", "p_dgr": "packet"}


def sockets_of(pid: int) -> set[Open]:
    """Return the sockets of a process and its children, as ss(8) lists them in this network."""
    if shutil.which("ss") is None:
        pytest.skip("needs ss, from iproute2")
    pids, found = {str(pid), *children_of(pid)}, set()
    said = subprocess.run(["ss", "-HOanptux0"], capture_output=True, text=True, timeout=60, check=True).stdout
    for line in said.splitlines():
        kind, state, _, _, at, to, *_ = line.split()
        is_open = state == "LISTEN" or kind not in ("tcp", "u_str")
        if kind in KINDS and is_open and pids & set(re.findall(r"pid=(\d+)", line)):
            found.add(Open(KINDS[kind], at.replace("[::ffff:127.0.0.1]", "127.0.0.1"), to))
    return found


def children_of(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in (task / "children").read_text().split():
                yield child
                yield from children_of(int(child))


def rows() -> dict[Row, list[str]]:
    """Return the rows of the document's table: its last columns, by process, kind of socket, and option or address."""
    text = SECURITY.read_text().partition("## What listens where")[2].partition("\n## ")[0]
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            whose, kind, where, *said = [cell.strip() for cell in line.strip("|").split("|")]
            option = re.match(r"`([^`]+)`", where)
            assert option is not None, line
            found[whose.strip("`"), kind, option[1]] = said
    return found


def test_the_table_says_of_each_who_may_reach_it_and_what_protects_it() -> None:
    assert len(rows()) >= 10
    assert all(len(said) == 2 and all(said) for said in rows().values())


def named(whose: str, seen: set[Open], addresses: dict[str, str]) -> set[Row]:
    """Return the rows of the sockets that a process has open.

    addresses: the addresses that the process has printed, by option. A socket at another address is "unknown".
    """
    options = {address: option for option, address in addresses.items()}
    return {(whose, one.kind, options.get(one.at, f"unknown: {one}")) for one in seen}


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def said_by(one: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait until a command is ready, and return what it prints then."""
    assert one.stdout is not None
    said: dict[str, Any] = json.loads(one.stdout.readline())
    return said


def of_switch(pid: int, said: dict[str, Any]) -> set[Row]:
    addresses = {"--grpc": said["grpc"].removeprefix("unix:")}
    for number, address in said["ports"].items():
        addresses["--port N=udp:ADDRESS:PORT"] = address.removeprefix("udp:")
        assert number == "1"
    return named("p4reduce switch", sockets_of(pid), addresses)


@pytest.mark.parametrize("target", [pytest.param("sim", marks=pytest.mark.slow), "native"])
def test_what_is_open_is_in_the_table(target: str, tmp_path: Path) -> None:
    found: set[Row] = set()
    options = ["--page", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    with Stack(target, ["1=udp:127.0.0.1:0"], options=options) as stack:
        [switch] = stack.switches
        found |= of_switch(switch.process.pid, stack.ready[0])
        addresses = {f"--{name}": stack.served[name] for name in ("listen", "page", "metrics")}
        found |= named("p4reduce controller", sockets_of(stack.controller_process.process.pid), addresses)
        environment = {"P4REDUCE_CONTROLLER": stack.controller, "WORLD_SIZE": "2"}
        with (
            process("-c", RANK, RANK="0", P4REDUCE_LOCAL="off", **environment) as first,
            process("-c", RANK, RANK="1", P4REDUCE_LOCAL="off", **environment) as second,
        ):
            for rank in (first, second):
                said_by(rank)
                seen = sockets_of(rank.pid)
                assert {one.to for one in seen if one.kind == "UDP"} == {stack.addresses[0]}
                found |= named("a rank", seen, {"connected": next(one.at for one in seen if one.kind == "UDP")})
    with process(*f"-m p4reduce switch --target {target} --json --port 1=udp:127.0.0.1:0".split(),
                 "--grpc", f"unix:{tmp_path / 'grpc'}") as one:  # fmt: skip
        found |= of_switch(one.pid, said_by(one))
    expected = {
        ("p4reduce controller", "TCP", "--listen"),
        ("p4reduce controller", "TCP", "--page"),
        ("p4reduce controller", "TCP", "--metrics"),
        ("p4reduce switch", "TCP", "--grpc"),
        ("p4reduce switch", "Unix", "--grpc"),
        ("p4reduce switch", "UDP", "--port N=udp:ADDRESS:PORT"),
        ("a rank", "UDP", "connected"),
    }
    assert found == expected
    assert expected <= rows().keys()


def test_nothing_listens_beyond_this_host_unless_it_is_told_to() -> None:
    """Commands that are started without addresses listen on this host alone."""
    from p4reduce_controller.settings.settings import load

    settings = load(None, {})
    assert settings.listen.startswith("127.0.0.1:")
    assert settings.page == settings.metrics == ""


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("target", ["sim", "native", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_a_switch_on_interfaces(target: str) -> None:
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    command = f"-m p4reduce switch --target {target} --grpc 127.0.0.1:0 --json --port 1=eth:port1".split()
    with closing(Namespace()) as namespace, namespace.entered():
        network.cable("port1", "other")
        with process(*command) as one:
            said = said_by(one)
            seen = sockets_of(one.pid)
    found = named("p4reduce switch", {one for one in seen if one.kind == "TCP"}, {"--grpc": said["grpc"]})
    found |= {("p4reduce switch", one.kind, "--port N=eth:INTERFACE") for one in seen if one.kind == "packet"}
    rest = {one for one in seen if one.kind not in ("TCP", "packet")}
    thrift = {row for row in found if row[2].startswith("unknown")}
    expected = {("p4reduce switch", "TCP", "--grpc"), ("p4reduce switch", "packet", "--port N=eth:INTERFACE")}
    if target == "bmv2":
        assert all(re.search(r"'(0\.0\.0\.0|\[::\]|\*):", row[2]) for row in thrift)
        assert len(thrift) <= 1
        expected.add(("p4reduce switch", "TCP", "Thrift"))
        found = found - thrift | {("p4reduce switch", "TCP", "Thrift")}
        rest = {one for one in rest if one.kind != "Unix"}
    assert not rest
    assert found == expected
    assert expected <= rows().keys()
