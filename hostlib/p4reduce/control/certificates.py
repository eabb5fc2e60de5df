# SPDX-License-Identifier: Apache-2.0
"""A certificate, its key, and the authorities that are trusted: PEM files that may change while they are in use."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc

log = logging.getLogger(__name__)

_MOST_READ = 5  # times, where files change while they are read


class CertificateError(Exception):
    """The files cannot be used; the message says which and why, and has nothing of a key."""


@dataclass(frozen=True)
class Pem:
    """What stood in the files; empty where there is no such file. `version`: the higher the later. `context`: of the
    same, for a server that is not gRPC's."""

    certificate: bytes
    key: bytes
    authorities: bytes
    version: int
    context: ssl.SSLContext = field(repr=False)


class TlsFiles:
    """What new connections shall use. Those that there are keep what they began with.

    The files are looked at whenever they are asked for, and read again where one has changed. What cannot be used is
    logged once, and what was read before stays in use; a certificate and its key that are replaced one after the other
    do not fit each other in between, so they are read once they do.
    """

    def __init__(
        self,
        certificate: str | Path = "",
        key: str | Path = "",
        authorities: str | Path = "",
        *,
        called: tuple[str, str, str] = ("the certificate", "its key", "the authorities"),
    ) -> None:
        """`called`: the three in messages, such as their options. Raises CertificateError."""
        self._paths = (str(certificate or ""), str(key or ""), str(authorities or ""))
        self.certificate, self.key, self.authorities = self._paths
        self._called = called
        self._lock = threading.Lock()
        if bool(certificate) != bool(key):
            raise CertificateError(f"{called[0]} and {called[1]}: give both or neither")
        self._pem = self._read(1)

    @property
    def demands(self) -> bool:
        """A server's: callers need a certificate of these authorities."""
        return bool(self._paths[2])

    def current(self) -> Pem:
        with self._lock:
            if self._stamps() != self._seen:
                try:
                    self._pem = self._read(self._pem.version + 1)
                    log.warning("%s: read again; new connections use it", self)
                except CertificateError as error:
                    log.error("%s; the version read before stays in use", error)
            return self._pem

    def __str__(self) -> str:
        return ", ".join(f"{what} {path}" for what, path in zip(self._called, self._paths, strict=True) if path)

    def _read(self, version: int) -> Pem:
        """All of one time: what was changed meanwhile is read again. Raises CertificateError."""
        for _ in range(_MOST_READ):
            self._seen = self._stamps()
            try:
                pem = self._read_once(version)
            except CertificateError:
                if self._stamps() == self._seen:
                    raise
            else:
                if self._stamps() == self._seen:
                    return pem
        raise CertificateError(f"{self}: the files keep changing while they are read")

    def _read_once(self, version: int) -> Pem:
        """Raise CertificateError."""
        certificate, key, authorities = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = self._called[2]
        try:
            if authorities:
                context.load_verify_locations(authorities)
                context.verify_mode = ssl.CERT_REQUIRED
                context.num_tickets = 0  # who was let in once shows its certificate again
                context.options |= ssl.OP_NO_TICKET
            if certificate:
                what = f"{self._called[0]} with {self._called[1]}"
                context.load_cert_chain(certificate, key, password=_no_password)
            read = [Path(path).read_bytes() if path else b"" for path in self._paths]
            return Pem(read[0], read[1], read[2], version, context)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                pair = f"{self._called[0]} and {self._called[1]}"
                raise CertificateError(f"{pair}: {key} is not the key of the certificate in {certificate}") from None
            why = (error.reason or "not PEM").replace("_", " ").lower()
            raise CertificateError(f"{what} {self._of(what)}: {why}") from None
        except OSError as error:
            missing = [path for path in self._paths if path and not os.access(path, os.R_OK)]
            raise CertificateError(f"cannot read {', '.join(missing) or self}: {error.strerror}") from None
        except ValueError as error:
            raise CertificateError(f"{what} {self._of(what)}: {error}") from None

    def _of(self, what: str) -> str:
        certificate, key, authorities = self._paths
        return authorities if what == self._called[2] else f"{certificate}, {key}"

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(_stamp, self._paths))


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """For a gRPC server, which asks for them at each handshake."""
    used = files.current()

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(used.key, used.certificate)], used.authorities or None)

    def fetched() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        now = files.current()
        if now.version == used.version:
            return None
        used = now
        return configuration()

    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], fetched)  # or None, where nothing is new
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, require_client_authentication=files.demands)


def channel_credentials(pem: Pem) -> grpc.ChannelCredentials:
    """For a gRPC channel. Without authorities, those that gRPC ships are trusted."""
    return grpc.ssl_channel_credentials(pem.authorities or None, pem.key or None, pem.certificate or None)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        stat = Path(path).stat() if path else None
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else ()


def _no_password() -> str:
    raise ValueError("the key has a password; give a key without a password")
