# SPDX-License-Identifier: Apache-2.0
"""The transports that carry a worker's packets to the switch. They have one interface and different requirements."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence

from p4reduce.transport.base import Switch, Transport, TransportError
from p4reduce.transport.striped import SharedTransport, StripedTransport

__all__ = [
    "KINDS",
    "StripedTransport",
    "SharedTransport",
    "Switch",
    "Transport",
    "TransportError",
    "open_transport",
    "open_transports",
]

# A transport is imported when it is opened, because 'scapy' is slow to import and may not be installed.
_CLASSES = {
    "udp": ("p4reduce.transport.udp", "UdpTransport"),
    "raw": ("p4reduce.transport.raw", "RawTransport"),
    "scapy": ("p4reduce.transport.scapy_transport", "ScapyTransport"),
}
KINDS = tuple(_CLASSES)


def open_transport(kind: str, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> Transport:
    """Open a transport of `kind` 'udp', 'raw' or 'scapy' to `switch`.

    interface: network interface to use; by default the one that the routing table gives for the switch's address.
    largest_payload: bytes of the job's largest datagram, checked against the MTU.
    Raises ValueError for an unknown kind, TransportError where the transport cannot work.
    """
    if kind not in _CLASSES:
        raise ValueError(f"transport={kind!r}: accepted are {', '.join(KINDS)}")
    module, name = _CLASSES[kind]
    transport: Transport = getattr(importlib.import_module(module), name)(
        switch, interface=interface, largest_payload=largest_payload
    )
    return transport


def open_transports(
    kind: str,
    switches: Sequence[Switch],
    *,
    interface: str | None = None,
    largest_payload: int = 0,
    jobs: Sequence[tuple[int, int]] = (),
) -> Transport:
    """Open a transport to all of `switches`, over which the slots are striped in this order.

    jobs: as for `StripedTransport`. The other arguments and the errors are those of `open_transport`.
    """
    with contextlib.ExitStack() as undo:
        parts = []
        for switch in switches:
            parts.append(open_transport(kind, switch, interface=interface, largest_payload=largest_payload))
            undo.callback(parts[-1].close)
        transport = parts[0] if len(parts) == 1 else StripedTransport(parts, switches, jobs=jobs)
        undo.pop_all()
    return transport
