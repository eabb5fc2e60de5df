# SPDX-License-Identifier: Apache-2.0
"""A sender of forged packets: packets of a job that it is not in, for rounds to come, in the name of every worker.

Half of the packets have the sender's own addresses, half those of a worker. No switch may accept any of them.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from itertools import cycle, product

from p4reduce.protocol.constants import DEFAULT_LANES, Op
from p4reduce.protocol.packet import Packet
from p4reduce_controller.switches.frames import Endpoint, build

_BATCH, _PAUSE_S = 20, 0.01
_ROUNDS = 40
_KEYS = (0x000000FF,) * DEFAULT_LANES


def main() -> None:
    """Send packets until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--interface", required=True)
    parser.add_argument("--switch", nargs=2, required=True, help="IP and MAC address")
    parser.add_argument("--senders", type=json.loads, required=True, help="[[IP, MAC, UDP port], ...]")
    for name in ("job", "generation", "workers", "slots", "seq"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    ip, mac = options.switch
    switch = Endpoint(mac, ip, 31314)
    senders = [Endpoint(sender[1], sender[0], sender[2]) for sender in options.senders]
    frames = (
        build(
            Packet(Op.DATA, options.job, options.generation, worker, 2 * slot + seq % 2, seq, keys=_KEYS),
            sender,
            switch,
        )
        for seq, slot, worker, sender in cycle(
            product(range(options.seq, options.seq + _ROUNDS), range(options.slots), range(options.workers), senders)
        )
    )
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((options.interface, 0))
        print("{}", flush=True)
        while True:
            for _ in range(_BATCH):
                out.send(next(frames))
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
