# SPDX-License-Identifier: Apache-2.0
"""Errors of the operating system and of gRPC are reported in words that help the user."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import grpc
import pytest

from p4reduce.control import diagnostics
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.asking import ask
from p4reduce.control.certificates import CertificateError, TlsFiles
from p4reduce.control.channel import Tls, explain, open_channel
from p4reduce.errors import JoinError
from tests.support.certificates import self_signed
from tests.support.scripted_controller import Answers, Refuses, serving


@pytest.mark.parametrize(
    "text", ["127.0.0.1:7700", "[::1]:7700", "[fe80::1%d0]:7", "a.example:1", "unix:/run/p4", "dns:///a.b:7"]
)
def test_addresses(text: str) -> None:
    diagnostics.check_address("--controller", text, "127.0.0.1:7700")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("127.0.0.1", "the port is missing"),
        ("127.0.0.1:", "the port is missing"),
        ("", "the port is missing"),
        (":7700", "the host is missing"),
        ("7700", "the host is missing, as in 127.0.0.1:7700"),
        ("http://127.0.0.1:7700", "leave out http://"),
        ("https://a.example", "leave out https://"),
        ("::1", "write an IPv6 address in brackets, as in [::1]:7700"),
        ("::1:7700", "write an IPv6 address in brackets, as in [::1]:7700"),
        ("[::1]", "the port is missing"),
        ("[::1:7700", "[::1 is not an IPv6 address in brackets"),
        ("[::1]x:7700", "[::1]x is not an IPv6 address in brackets"),
        ("[fd00::zz]:7700", "[fd00::zz] is not an IPv6 address in brackets"),
        ("[fe80::1]:7700", "a link-local address needs its zone, as in [fe80::1%eth0]:7700"),
        ("a.example:http", "http is not a port number"),
        ("a.example:0", "0 is not a port number"),
        ("a.example:65536", "65536 is not a port number"),
    ],
)
def test_what_is_no_address(text: str, advice: str) -> None:
    with pytest.raises(ValueError) as caught:
        diagnostics.check_address("--controller", text, "127.0.0.1:7700")
    assert str(caught.value) == f"--controller {text}: must be HOST:PORT, as in 127.0.0.1:7700; {advice}"
    with pytest.raises(JoinError, match="must be HOST:PORT"):  # at once, and not after a time-out
        open_channel(text, None)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("[FD00:0:0::FE]:7700", "[fd00::fe]:7700"),
        ("[FE80:0::1%25D0]:7700", "[fe80::1%D0]:7700"),
        ("[::\0]:7700", "[::\0]:7700"),
        ("[0:0:0:0:0:ffff:7f00:1]:1", "127.0.0.1:1"),
        ("[::FFFF:127.0.0.1]", "127.0.0.1"),
        ("[::zz]:7700", "[::zz]:7700"),
        ("::1", "::1"),
        ("A.example:7700", "A.example:7700"),
        ("", ""),
    ],
)
def test_each_address_has_one_text(text: str, canonical: str) -> None:
    assert diagnostics.canonical_address(text) == canonical
    assert diagnostics.canonical_address(canonical) == canonical


def test_who_has_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = diagnostics.cannot_listen(f"127.0.0.1:{port}")
        assert said == f"another program uses the port; `ss -ltnp 'sport = :{port}'` shows which"
    assert diagnostics.cannot_listen(f"127.0.0.1:{port}") == ""
    assert diagnostics.cannot_listen("192.0.2.1:0") == "this machine does not have that address"
    assert diagnostics.cannot_listen("no-such-host.invalid:1") == "there is no host of that name"
    assert diagnostics.cannot_listen("unix:/nowhere/socket") == "/nowhere is not a writable folder"


def test_a_certificate_and_a_key(tmp_path: Path) -> None:
    one, key = self_signed(tmp_path, "one")
    _, other = self_signed(tmp_path, "other")
    called = ("--tls-cert", "--tls-key", "--tls-ca")
    TlsFiles(one, key, called=called)
    with pytest.raises(CertificateError) as caught:
        TlsFiles(one, other, called=called)
    assert str(caught.value) == f"--tls-cert and --tls-key: {other} is not the key of the certificate in {one}"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b" \n", "it is empty"), (b"my secret", "one word"), (b"\xff", "must be ASCII")],
)
def test_a_token_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        diagnostics.read_token(file)
    assert "secret" not in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    diagnostics.check_folder("--pcap", tmp_path / "new")
    diagnostics.check_folder("--pcap", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="must be a folder, and this is a file"):
        diagnostics.check_folder("--pcap", tmp_path / "file")


class _Refused(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that did not get through."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details


for _name in _Refused.__abstractmethods__:
    setattr(_Refused, _name, None)
_Refused.__abstractmethods__ = frozenset()


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ("errors resolving http://x:1: [address lookup failed for x: Domain name not found]", "no host of that name"),
        ("Trying to connect an http1.x server", "a web server answers there, not a gRPC server"),
        ("something new", "something new"),
    ],
)
def test_what_grpc_says(details: str, said: str) -> None:
    assert said in explain(_Refused(details), "127.0.0.1:7700", None)


@pytest.mark.parametrize(("address", "listens"), [("127.0.0.1:7700", True), ("10.0.0.1:7700", False)])
def test_advice_is_such_that_is_accepted(address: str, listens: bool) -> None:
    """A controller refuses to serve other hosts without TLS."""
    said = explain(_Refused("Connection refused"), address, None)
    assert (f"start one with `p4reduce controller --listen {address}`" in said) is listens


def test_numbers_of_things() -> None:
    assert [diagnostics.counted(*one) for one in ((0, "job"), (1, "job"), (1, "switch"), (2000, "switch"))] == [
        "0 jobs",
        "1 job",
        "1 switch",
        "2,000 switches",
    ]


NAMES_OF_CODES = re.compile(rf"\b({'|'.join(code.name for code in grpc.StatusCode)})\b")


def asked(address: str, tls: Tls | None = None, timeout: float = 10.0) -> pb.StatusReply:
    return ask(address, None, tls, lambda stub, meta: stub.Status(pb.StatusRequest(), timeout=timeout, metadata=meta))


def said(address: str, tls: Tls | None = None) -> str:
    with pytest.raises(JoinError) as error:
        asked(address, tls)
    text = str(error.value)
    assert not NAMES_OF_CODES.search(text), text
    return text


def test_of_several_the_one_that_serves_answers() -> None:
    with serving(Answers()) as address:
        assert asked(f"127.0.0.1:1, {address}").jobs_started == 7


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_no_name_of_a_code_is_told(code: grpc.StatusCode) -> None:
    with serving(Refuses(code, "the switch s1 is away")) as address:
        assert "the switch s1 is away" in said(address)


def test_what_is_no_controller() -> None:
    with serving() as address:
        assert f"controller at {address}: it is not a p4reduce controller of this version" in said(address)


def test_a_listener_that_says_nothing_is_told_of_soon() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = said(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "a process listens there but does not answer as a controller" in text
    assert time.monotonic() - began < 10  # the time-out of the call itself


def test_what_is_wrong_with_tls_is_told_apart(tmp_path: Path) -> None:
    here, here_key = self_signed(tmp_path, "here", "IP:127.0.0.1")
    other, other_key = self_signed(tmp_path, "other", "DNS:other.example")
    with serving(Answers(), here, here_key) as address:
        assert asked(address, Tls(here)).jobs_started == 7
        text = said(address, Tls(other))
        assert "its certificate is not signed by an authority that is trusted here" in text
        assert "--tls-ca (P4REDUCE_TLS_CA)" in text
        assert ("it uses TLS; give the certificate authorities to trust, with --tls-ca (P4REDUCE_TLS_CA)") in said(
            address
        )
    with serving(Answers(), other, other_key) as address:
        assert "its certificate is for another host name" in said(address, Tls(other))
    with serving(Answers()) as address:
        assert "it does not use TLS; leave out --tls-ca (P4REDUCE_TLS_CA)" in said(address, Tls(here))
