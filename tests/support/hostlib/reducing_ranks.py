# SPDX-License-Identifier: Apache-2.0
"""Rank processes that reduce repeatedly until a reduction fails, for tests that kill or stop ranks.

Run as a program, this module is one rank. It prints these lines:

| line | when |
|---|---|
| there | the rank is about to reduce |
| late, aborted or failed, a rank, and the error | a reduction has failed |
| kept | nothing has written to the rank's tensor for some time after the failure |
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import p4reduce
from p4reduce.errors import CollectiveTimeout, JobAborted, P4ReduceError
from p4reduce.local.engine import LocalEngine, SharingEngine
from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.transport import Switch, open_transport

from .hosts_job import memberships, one_a_host
from .local_engines import NoTransport, PendingOperation
from .udp_switch import UdpSwitch


class ReducingRank(subprocess.Popen[str]):
    """A rank's process."""

    def says(self) -> str:
        """Return the next line that the rank prints."""
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def fail(self) -> None:
        """Make the rank's operation fail, as when the controller reports the loss of another rank."""
        assert self.stdin is not None
        self.stdin.write("fail\n")
        self.stdin.flush()


@contextlib.contextmanager
def reducing(
    hosts: Sequence[int], size: int, *, every: int = 1, timeout: float = 60, fork: bool = False
) -> Iterator[list[ReducingRank]]:
    """Run ranks on these hosts during the block, and yield them when all reduce.

    hosts: the pretended host of each rank.
    every: one value in so many is not zero.
    fork: whether each rank has a child process that survives it.
    """
    facts = {"hosts": hosts, "size": size, "every": every, "timeout": timeout, "fork": fork}
    with contextlib.closing(UdpSwitch()) as switch, contextlib.ExitStack() as stack:
        facts |= {"secret": secrets.randbits(63), "port": switch.endpoint.udp_port}
        workers = [one_a_host(membership(facts, 0), worker) for worker in range(len(set(hosts)))]
        switch.admit(workers[0])
        transport = stack.enter_context(contextlib.closing(open_transport("udp", switch.endpoint)))
        transport.send([Worker(member).hello(1) for member in workers])
        ranks = []
        for rank in range(len(hosts)):
            command = [sys.executable, "-m", __name__, json.dumps({"rank": rank, **facts})]
            ranks.append(ReducingRank(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].communicate)
            stack.callback(ranks[-1].kill)
        assert [rank.says() for rank in ranks] == ["there"] * len(ranks)
        yield ranks


def membership(facts: dict[str, Any], rank: int) -> Membership:
    return memberships(facts["hosts"], abort_secret=facts["secret"])[rank]


def reduce_until_it_fails(engine: LocalEngine, tensor: Any, facts: dict[str, Any]) -> BaseException:
    ranks = len(facts["hosts"])
    while True:
        tensor.fill(0)
        tensor[:: facts["every"]] = facts["rank"] + 1
        pending_operation = PendingOperation()
        try:
            engine.submit(Operation(tensor), name="it", timeout=facts["timeout"], on_end=pending_operation)
        except P4ReduceError as error:
            return error  # it failed before
        error = pending_operation.wait()
        if error is not None:
            return error
        assert (tensor[:: facts["every"]] == ranks * (ranks + 1) // 2).all()


def fork() -> None:
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(20)
        os._exit(0)


def main(facts: dict[str, Any]) -> None:
    member = membership(facts, facts["rank"])
    leads = len(member.leaders) > 1 and member.leader == member.rank
    transport = open_transport("udp", Switch("127.0.0.1", facts["port"])) if leads else NoTransport()
    engine = (SharingEngine if len(member.leaders) > 1 else LocalEngine)(transport, member, switch="the switch")
    if facts["fork"]:
        fork()
    tensor = p4reduce.shared_empty(facts["size"])
    print("there", flush=True)

    def obey() -> None:
        if sys.stdin.readline():
            engine.fail(P4ReduceError("a rank has gone"))

    threading.Thread(target=obey, daemon=True).start()
    error = reduce_until_it_fails(engine, tensor, facts)
    who = error.awaited if isinstance(error, CollectiveTimeout) else getattr(error, "rank", None)
    kind = "late" if isinstance(error, CollectiveTimeout) else "aborted" if isinstance(error, JobAborted) else "failed"
    print(kind, who, error, flush=True)
    tensor.fill(777)
    time.sleep(0.3)
    if (tensor == 777).all():
        print("kept", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
