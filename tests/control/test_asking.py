# SPDX-License-Identifier: Apache-2.0
"""What a question to a controller fails with: words, and what to do."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce.control.asking import ask
from p4reduce.control.channel import Tls
from p4reduce.errors import JoinError
from tests.certificates import self_signed

NAMES_OF_CODES = re.compile(rf"\b({'|'.join(code.name for code in grpc.StatusCode)})\b")


class Controller(rpc.JobsServicer):
    """Refuses what it is asked, as `refusal` has it."""

    def __init__(self, refusal: tuple[grpc.StatusCode, str] | None = None) -> None:
        self.refusal = refusal

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: ARG002
        if self.refusal is not None:
            context.abort(*self.refusal)
        return pb.StatusReply(jobs_started=7)


@contextmanager
def serving(controller: rpc.JobsServicer | None = None, *pair: Path) -> Iterator[str]:
    """Where. `pair`: certificate and key; without them, in the clear."""
    server = grpc.server(ThreadPoolExecutor(2))
    if controller is not None:
        rpc.add_JobsServicer_to_server(controller, server)
    if pair:
        certificate, key = (file.read_bytes() for file in pair)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def asked(address: str, tls: Tls | None = None, timeout: float = 10.0) -> pb.StatusReply:
    return ask(address, None, tls, lambda stub, meta: stub.Status(pb.StatusRequest(), timeout=timeout, metadata=meta))


def said(address: str, tls: Tls | None = None) -> str:
    with pytest.raises(JoinError) as error:
        asked(address, tls)
    text = str(error.value)
    assert not NAMES_OF_CODES.search(text), text
    return text


def test_of_several_the_one_that_serves_answers() -> None:
    with serving(Controller()) as address:
        assert asked(f"127.0.0.1:1, {address}").jobs_started == 7


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_no_name_of_a_code_is_told(code: grpc.StatusCode) -> None:
    with serving(Controller((code, "the switch s1 is away"))) as address:
        assert "the switch s1 is away" in said(address)


def test_what_is_no_controller() -> None:
    with serving() as address:
        assert f"controller at {address}: it is not a p4reduce controller of this version" in said(address)


def test_a_listener_that_says_nothing_is_told_of_soon() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = said(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "a process listens there but does not answer as a controller" in text
    assert time.monotonic() - began < 6


def test_what_is_wrong_with_tls_is_told_apart(tmp_path: Path) -> None:
    here, here_key = self_signed(tmp_path, "here", "IP:127.0.0.1")
    other, other_key = self_signed(tmp_path, "other", "DNS:other.example")
    with serving(Controller(), here, here_key) as address:
        assert asked(address, Tls(here)).jobs_started == 7
        text = said(address, Tls(other))
        assert "its certificate is not signed by an authority that is trusted here" in text
        assert "--tls-ca (P4REDUCE_TLS_CA)" in text
        assert ("it uses TLS; give the certificate authorities to trust, with --tls-ca (P4REDUCE_TLS_CA)") in said(
            address
        )
    with serving(Controller(), other, other_key) as address:
        assert "its certificate is for another host name" in said(address, Tls(other))
    with serving(Controller()) as address:
        assert "it does not use TLS; leave out --tls-ca (P4REDUCE_TLS_CA)" in said(address, Tls(here))
