# SPDX-License-Identifier: Apache-2.0
"""The address of the store."""

from __future__ import annotations

from p4reduce_controller.base.schema import SettingsError

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
