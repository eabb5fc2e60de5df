# SPDX-License-Identifier: Apache-2.0
"""A device with its BF Runtime server as a process: a stand-in for `bf_switchd` and a chip.

python -m tests.support.bfrt --profile tofino1-32 --port 8=udp:127.0.0.1:0 --port 64=eth:cpu1

A port that is an interface has a link partner while the interface's link is up.

It prints a line of JSON with its address and ports when it is ready, and ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from p4reduce_targets.ports import Port, PortSpec, open_port

from . import bfruntime_pb2 as bfrt
from . import programs
from .device import Device
from .server import Server
from .wiring import wired

POLL_S = 0.1  # between looks at the interfaces' links


def main() -> None:
    """Run until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.bfrt", description=__doc__)
    parser.add_argument("--profile", default="tofino1-32", choices=programs.tofino.PROFILES, help="board and CPU port")
    parser.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT of BF Runtime")
    parser.add_argument("--program", type=Path, help="folder with p4reduce.bin; default: no program")
    parser.add_argument("--port", action="append", default=[], help="DEVICE_PORT=udp:ADDRESS:PORT or =eth:INTERFACE")
    given = parser.parse_args()
    device = programs.device(given.profile, installed=False)
    if given.program is not None:
        device.install(bfrt.ForwardingPipelineConfig.FromString((given.program / "p4reduce.bin").read_bytes()))
    with ExitStack() as stack:
        ports = []
        for text in given.port:
            ports.append(open_port(PortSpec.parse(text)))
            stack.callback(ports[-1].close)
        switch = stack.enter_context(wired(device, ports))
        server = stack.enter_context(Server(device, given.listen))
        signal.signal(signal.SIGTERM, lambda *_: switch.stop())
        signal.signal(signal.SIGINT, lambda *_: switch.stop())
        threading.Thread(target=follow_links, args=(device, ports), daemon=True).start()
        named = {str(port.number): port.name for port in ports}
        print(json.dumps({"ready": True, "address": server.address, "ports": named}), flush=True)
        switch.run()


def follow_links(device: Device, ports: Sequence[Port]) -> None:
    """Unplug and plug the link partners of ports as the links of their interfaces go down and up. Does not return."""
    links = {port.number: port.interface for port in ports if port.interface is not None}
    while links:
        for number, link in links.items():
            with device.lock:
                device.ports.set_partner(number, link.state() == "UP")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
