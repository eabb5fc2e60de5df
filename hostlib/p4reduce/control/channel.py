# SPDX-License-Identifier: Apache-2.0
"""Channels to a controller, and error messages for when it cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from p4reduce.control import diagnostics
from p4reduce.control.certificates import CertificateError, Pem, TlsFiles, channel_credentials
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import JoinError

DEFAULT_CONTROLLER = "127.0.0.1:7700"
LEASE = 60.0  # seconds
_CA = "--tls-ca (P4REDUCE_TLS_CA)"
_STANDS_BY = "stands by"  # text in the reply of a controller that does not serve, since another one does
_CONNECT_TIMEOUT = 20.0  # seconds, gRPC's default; many ranks may connect at once
_MAX_STANDSTILL = 300.0  # seconds for which the other side's process may be stopped


@dataclass(frozen=True)
class Tls:
    """The TLS files of a client of the controller.

    ca: PEM file with the authorities to trust; without it, those that gRPC ships.
    server_name: name for which the controller's certificate must be valid, if it is not the address's host.
    cert, key: PEM files with the client certificate and its key, if the controller asks for one.
    """

    ca: str | Path | None = None
    server_name: str | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def files(self) -> TlsFiles:
        """Read the files. Raises JoinError if they cannot be used."""
        names = ("the TLS certificate", "its key", "the TLS authorities")
        try:
            return TlsFiles(self.cert or "", self.key or "", self.ca or "", called=names)
        except CertificateError as error:
            raise JoinError(f"TLS to the controller: {error}") from None


def keepalive(lease: float) -> list[tuple[str, int]]:
    """Return options of a channel or server with which the loss of the other host is noticed within `lease` seconds.

    gRPC's C core sends and answers the pings, in threads that need no GIL. Only the other kernel's acknowledgement must
    arrive in time (TCP_USER_TIMEOUT), so a process that is stopped does not count as lost.
    """
    return [
        ("grpc.keepalive_time_ms", max(1, round(250 * lease))),
        ("grpc.keepalive_timeout_ms", max(1, round(750 * lease))),
        ("grpc.http2.ping_timeout_ms", round(1000 * max(_MAX_STANDSTILL, lease))),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
        ("grpc.http2.max_ping_strikes", 0),  # no limit on the other side's pings
    ]


def open_channel(
    address: str, tls: Tls | None, lease: float = LEASE, pem: Pem | None = None, connect: float = _CONNECT_TIMEOUT
) -> grpc.Channel:
    """Return a channel that connects at its first call, within `connect` seconds.

    pem: the contents of the files of `tls`, if they have been read. Raises JoinError if `address` is no address, or if
    the files cannot be used.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", round(1000 * connect)),  # gRPC's name for the time-out of a connect
        ("grpc.max_reconnect_backoff_ms", 1000),  # gRPC's default is 2 minutes; a controller is back within seconds
        *keepalive(lease),
    ]
    check_controller(address)
    if tls is None:
        return open_grpc_channel(address, options=options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return open_grpc_channel(address, channel_credentials(pem or tls.files().current()), options)


def check_controller(address: str) -> None:
    """Raise JoinError if `address` is no address of a controller."""
    try:
        diagnostics.check_address("controller", address, DEFAULT_CONTROLLER)
    except ValueError as error:
        raise JoinError(str(error)) from None


def explain(error: grpc.RpcError, address: str, tls: Tls | None) -> str:
    """Return one line that says what is wrong and what to do. May connect, to find out what listens there."""
    where, text, code = f"controller at {address}: ", details(error), code_of(error)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return (
            f"{where}{text}; pass the token that the controller was started with (P4REDUCE_TOKEN, or a command's "
            "--token-file)"
        )
    said = diagnostics.of_grpc(text, code.name if code else "")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{where}it is not a p4reduce controller of this version ({said})"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{where}{said}; check whether it is overloaded, or its process is stopped"
    if code is not grpc.StatusCode.UNAVAILABLE or _STANDS_BY in text:
        return f"{where}{said}"
    if "Connection refused" in text:
        return f"{where}connection refused; {_start_one(address)}"
    if said == diagnostics.SILENT:
        return f"{where}{said} as a controller; check the address, and whether that process is stopped"
    if wrong := _tls_trouble(text, address, tls):
        return f"{where}{wrong}"
    return f"{where}unreachable ({said}); check the address and the network"


def _tls_trouble(text: str, address: str, tls: Tls | None) -> str:
    """Return what is wrong with TLS and what to do; "" if the trouble seems to be another."""
    closed = is_closed(text)
    if tls is None:
        if closed and diagnostics.speaks_tls(address):
            return f"it uses TLS; give the certificate authorities to trust, with {_CA}"
        return f"{text}; if the controller uses TLS, use TLS here too" if closed else ""
    if is_tls_trouble(text):
        wrong = diagnostics.of_tls(text, _CA)
        return wrong or (
            f"TLS failed ({text}); check that the controller uses TLS, which authority signed its certificate, and "
            "for which name"
        )
    if not closed:
        return ""
    if tls.cert is None:
        return f"{text}; if the controller asks for a client certificate, give one (--tls-cert, P4REDUCE_TLS_CERT)"
    return f"{text}; check that the controller trusts the client certificate (--tls-cert, P4REDUCE_TLS_CERT)"


def _start_one(address: str) -> str:
    """Return advice that works for this address: a controller serves other hosts only with TLS."""
    host = address.rpartition(":")[0]
    if host == "localhost" or host.startswith(("127.", "[::1]", "unix:")):
        return f"start one with `p4reduce controller --listen {address}`"
    return "check that a controller runs there, and that its --listen is this address (its default is the loopback)"


def may_come(error: grpc.RpcError) -> bool:
    """Return whether the error will go away when the controller has started, or begins to serve."""
    said = details(error)
    return code_of(error) is grpc.StatusCode.UNAVAILABLE and ("Connection refused" in said or _STANDS_BY in said)


def has_been_reset(error: grpc.RpcError) -> bool:
    """Return whether the other side has closed the connection before it answered: because of TLS, or since it ends."""
    return code_of(error) is grpc.StatusCode.UNAVAILABLE and is_closed(details(error))


def is_closed(text: str) -> bool:
    """Return whether the text is gRPC's "Connection reset by peer", "Socket closed" or the like."""
    return "reset" in text or "losed" in text


def has_gone(error: grpc.RpcError) -> bool:
    """Return whether the error is one of a connection that the controller had accepted before it ended."""
    return code_of(error) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def code_of(error: grpc.RpcError) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def details(error: grpc.RpcError) -> str:
    """Return gRPC's details in one line."""
    text = (error.details() if isinstance(error, grpc.Call) else str(error)) or "no details"
    return " ".join(text.split())


def is_tls_trouble(text: str) -> bool:
    return any(
        word in text.lower()
        for word in ("ssl", "tls", "handshake", "certificate", "peer name", "hostname verification")
    )
