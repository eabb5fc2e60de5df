# SPDX-License-Identifier: Apache-2.0
"""Channels of gRPC: on their way is no web proxy, and addresses with a zone are addresses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import grpc_target, open_aio_channel, open_grpc_channel
from tests.support.certificates import self_signed
from tests.support.own_network import Namespace, ip
from tests.support.scripted_controller import Answers, serving


def serve(address: str) -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_JobsServicer_to_server(Answers(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(grpc_target(address))
    server.start()
    return server, port


@pytest.fixture
def address() -> Iterator[str]:
    with serving(Answers()) as address:
        yield address


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment's proxy to an address at which there is none."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("proxy")
def test_the_environments_proxy_is_not_used(address: str) -> None:
    with open_grpc_channel(address) as channel:
        rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)

    async def ask() -> None:
        async with open_aio_channel(address) as channel:
            await rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("[fe80::77%d0]:7700", "[fe80::77%25d0]:7700"),
        ("[fe80::77%25d0]:7700", "[fe80::77%25d0]:7700"),
        ("[0:0::1]:7700", "[::1]:7700"),
        ("[::ffff:10.0.0.1]:7700", "10.0.0.1:7700"),
        ("10.0.0.1:7700", "10.0.0.1:7700"),
        ("host:7700", "host:7700"),
        ("unix:/run/a%20b", "unix:/run/a%20b"),
    ],
)
def test_a_zone_is_not_an_escaped_byte(address: str, target: str) -> None:
    assert grpc_target(address) == target


def test_a_certificate_names_an_address_in_whatever_spelling(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "one", "IP:::1")
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_JobsServicer_to_server(Answers(), server)  # type: ignore[no-untyped-call]
    pair = key.read_bytes(), certificate.read_bytes()
    try:
        port = server.add_secure_port("[::1]:0", grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        pytest.skip("this machine has no IPv6")
    server.start()
    with open_grpc_channel(f"[0:0:0::1]:{port}", grpc.ssl_channel_credentials(pair[1])) as channel:
        rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)
    server.stop(None)


HEARD = """
import sys
from p4reduce.control.grpc_channels import open_grpc_channel
from tests.control.test_grpc_channels import pb, rpc, serve

server, port = serve("[fe80::77%d0]:0")
for zone in ("d0", "25d0"):
    with open_grpc_channel(f"[fe80::77%{zone}]:{port}") as channel:
        rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)
server.stop(None)
"""


@pytest.mark.root
def test_an_address_with_a_zone_is_reached() -> None:
    network = Namespace()
    try:
        with network.entered():
            ip("link", "add", "d0", "type", "veth", "peer", "name", "d1")
            for name in ("d0", "d1"):
                ip("link", "set", name, "up")
            ip("address", "add", "fe80::77/64", "dev", "d0", "nodad")
            done = subprocess.run([sys.executable, "-c", HEARD], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
    finally:
        network.close()
