# SPDX-License-Identifier: Apache-2.0
"""Making a data plane of a compiled program."""

from __future__ import annotations

from p4reduce_targets.dataplane import wrong_cpu_port
from p4reduce_targets.native import program
from p4reduce_targets.native.dataplane import NativeDataPlane
from p4reduce_targets.native.handle import Handle


def load(text: str | bytes, cpu_port: int = 510, switch: Handle | None = None) -> NativeDataPlane:
    """Return a data plane of the native switch `switch`; by default, of a new switch without ports.

    Raises ValueError if the program is not the aggregator's, or is for another CPU port; the message says what differs.
    """
    layout = program.check(text.encode() if isinstance(text, str) else text)
    if layout.cpu_port != cpu_port:
        raise wrong_cpu_port(layout.cpu_port, cpu_port)
    return NativeDataPlane(switch or Handle(0), layout)
