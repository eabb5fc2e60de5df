# SPDX-License-Identifier: Apache-2.0
"""A certificate, its key, and the trusted authorities: PEM files that may change while they are in use."""

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

_MAX_READS = 5  # attempts to read files that change meanwhile


class CertificateError(Exception):
    """The files cannot be used; the message says which and why, and contains no part of a key."""


@dataclass(frozen=True)
class Pem:
    """The contents of the files, each empty if there is no such file.

    version: counts the times that the files were read. context: the same for a server that is not gRPC's.
    """

    certificate: bytes
    key: bytes
    authorities: bytes
    version: int
    context: ssl.SSLContext = field(repr=False)


class TlsFiles:
    """The files that new connections use; existing connections keep their certificates.

    `current` checks whether a file has changed, and then reads all again. Files that cannot be used are logged once,
    and the version read before stays in use. That covers a certificate and its key that are replaced one after the
    other: in between they do not match, and are read again when they do.
    """

    def __init__(
        self,
        certificate: str | Path = "",
        key: str | Path = "",
        authorities: str | Path = "",
        *,
        called: tuple[str, str, str] = ("the certificate", "its key", "the authorities"),
    ) -> None:
        """Read the files. `called`: their names in messages, such as their options. Raises CertificateError."""
        self._paths = (str(certificate or ""), str(key or ""), str(authorities or ""))
        self.certificate, self.key, self.authorities = self._paths
        self._called = called
        self._lock = threading.Lock()
        if bool(certificate) != bool(key):
            raise CertificateError(f"{called[0]} and {called[1]}: give both or neither")
        self._pem = self._read(1)

    @property
    def demands(self) -> bool:
        """Whether clients of a server with these files need a certificate from the authorities."""
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
        """Read all files in a consistent state: if one changes meanwhile, read again. Raises CertificateError."""
        for _ in range(_MAX_READS):
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
        """Read all files once. Raises CertificateError."""
        certificate, key, authorities = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = self._called[2]
        try:
            if authorities:
                context.load_verify_locations(authorities)
                context.verify_mode = ssl.CERT_REQUIRED
                context.num_tickets = 0  # no session resumption: a client shows its certificate every time
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
    """Return credentials for a gRPC server, which fetches the current certificates at each handshake."""
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
    """Return credentials for a gRPC channel. Without authorities, it trusts those that gRPC ships."""
    return grpc.ssl_channel_credentials(pem.authorities or None, pem.key or None, pem.certificate or None)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        stat = Path(path).stat() if path else None
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else ()


def _no_password() -> str:
    raise ValueError("the key has a password; give a key without a password")
