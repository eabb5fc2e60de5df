# SPDX-License-Identifier: Apache-2.0
"""Where the store is, and how it is reached."""

from __future__ import annotations

from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.service.listening import is_loopback
from p4reduce_controller.settings.schema import SettingsError
from p4reduce_controller.settings.tls_settings import calling_files

SCHEME = "etcd://"
PREFIX = "/p4reduce"
PORT = 2379
SHORTEST = 2  # seconds of a lease: etcd's own least, as it is by default


def parse_store(text: str) -> tuple[list[str], str]:
    """Of etcd://HOST:PORT,HOST:PORT[/PREFIX]: the members, and what all keys begin with. Raises SettingsError."""
    refused = SettingsError(f"--store {text}: must be etcd://HOST:PORT,HOST:PORT or etcd://HOST:PORT/PREFIX")
    if not text.startswith(SCHEME):
        raise refused
    places, _, prefix = text.removeprefix(SCHEME).partition("/")
    members = [place if ":" in place.rpartition("]")[2] else f"{place}:{PORT}" for place in places.split(",")]
    for member in members:
        host, _, port = member.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16) or "@" in host:
            raise refused
    if len(set(members)) != len(members):
        raise SettingsError(f"--store {text}: the members must differ")
    return members, f"/{prefix.strip('/')}" if prefix.strip("/") else PREFIX


def way(members: list[str], cert: str, key: str, ca: str, *, insecure: bool) -> TlsFiles | None:
    """How the members are reached; None is in the clear. `cert`, `key`, `ca`: PEM files, or "". Raises
    SettingsError."""
    tls = calling_files("store", cert, key, ca, "etcd is")
    for member in members if tls is None else ():
        if not (insecure or is_loopback(member.rpartition(":")[0])):
            raise SettingsError(
                f"--store {member} is on another host: without TLS, anyone on the network path can read and change the "
                "jobs' secrets; give --store-ca, or --store-insecure if the network is trusted"
            )
    return tls
