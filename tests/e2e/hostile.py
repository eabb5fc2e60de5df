# SPDX-License-Identifier: Apache-2.0
"""A neighbour, as a process, on a switch port that nobody is admitted at: sends forged and random frames at a rate.

Prints {"sending": number of different frames}, then {"sent": so far} twice a second, until it is ended.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host

DIFFERENT = 4096
TICK_S = 0.001
SPOOFED_TYPE = 0x88B6  # IEEE 802: for local experiments


class Neighbour:
    """A hostile host that makes frames. plan: its own address, and its victims, the hosts of a job's ranks."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.random = Random(plan["seed"])
        self.switch = Host(*plan["switch"])
        self.own = Host(*plan["own"])
        self.victims = [Host(*one) for one in plan["victims"]]
        self.job, self.generation, self.lanes = plan["job"], plan["generation"], plan["lanes"]
        self.kinds: list[Callable[[], bytes]] = [getattr(self, kind) for kind in plan["kinds"]]

    def frame(self) -> bytes:
        return self.random.choice(self.kinds)()

    def hello(self) -> bytes:
        """Return a HELLO of a rank of the job, or of any host, with a wrong nonce."""
        source = self.random.choice([self.own, self._anybody(), *self.victims])
        return frames.frame(source, self.switch, self._packet(frames.HELLO))

    def data(self) -> bytes:
        return frames.frame(self.random.choice([self.own, *self.victims]), self.switch, self._packet(frames.DATA))

    def to_the_switch(self) -> bytes:
        """Return a packet to the switch that only the controller or a parent switch may send."""
        op = self.random.choice([frames.RESULT, frames.STATUS, frames.ERROR, frames.RESET, frames.QUERY, frames.ABORT])
        return frames.frame(self.random.choice([self.own, self.switch, *self.victims]), self.switch, self._packet(op))

    def from_the_switch(self) -> bytes:
        """Return a RESULT, STATUS or ERROR that claims to come from the switch, for a round that may exist."""
        op = self.random.choice([frames.RESULT, frames.STATUS, frames.ERROR])
        return frames.frame(self.switch, self.random.choice(self.victims), self._packet(op))

    def abort(self) -> bytes:
        return frames.frame(self.switch, self.random.choice(self.victims), self._packet(frames.ABORT))

    def arp(self) -> bytes:
        """Return an ARP packet that claims the address of a victim, of the switch, or of any host."""
        claimed = self.random.choice([self.switch, *self.victims, self._anybody()])
        sender = Host(self.random.choice([self.own.mac, claimed.mac]), claimed.ip)
        return frames.arp(self.random.choice([1, 2]), sender, self.random.choice([self.switch, *self.victims]))

    def spoofed(self) -> bytes:
        """Return a frame whose source is the MAC address of a victim or of the switch."""
        source = self.random.choice([self.switch, *self.victims])
        to = self.random.choice([*self.victims, self._anybody()])
        return frames.ethernet(source.mac, to.mac, SPOOFED_TYPE, self.random.randbytes(46))

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.randint(14, 1400))

    def _packet(self, op: int) -> Aggregation:
        random = self.random
        return Aggregation(
            op=op,
            active=0 if random.random() < 0.5 else random.getrandbits(self.lanes),
            worker=random.choice([0, 1, random.getrandbits(8)]),
            job=random.choice([self.job, self.job, random.getrandbits(16)]),
            generation=random.choice([self.generation, self.generation, random.getrandbits(16)]),
            slot=random.getrandbits(random.choice([3, 16])),
            seq=random.getrandbits(32),
            fingerprint=random.getrandbits(32),
            keys=[random.getrandbits(32) for _ in range(self.lanes)],
        )

    def _anybody(self) -> Host:
        mac = ":".join(f"{byte:02x}" for byte in (2, *self.random.randbytes(5)))
        return Host(mac, f"10.0.{self.random.getrandbits(8)}.{self.random.getrandbits(8)}")


def main() -> None:
    """Run the plan in the first argument: interface, rate in frames a second, and the arguments of `Neighbour`."""
    plan = json.loads(sys.argv[1])
    neighbour = Neighbour(plan)
    different = [neighbour.frame() for _ in range(DIFFERENT)]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((plan["interface"], 0))
        print(json.dumps({"sending": DIFFERENT}), flush=True)
        began = said = time.monotonic()
        sent = 0
        while True:
            now = time.monotonic()
            while sent < (now - began) * plan["rate"]:
                sock.send(different[sent % DIFFERENT])
                sent += 1
            if now - said > 0.5:
                print(json.dumps({"sent": sent, "seconds": now - began}), flush=True)
                said = now
            time.sleep(TICK_S)


if __name__ == "__main__":
    main()
