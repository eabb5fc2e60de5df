# SPDX-License-Identifier: Apache-2.0
"""A job of one rank from this host: it checks full-size packets in both directions by HELLOs, and then a sum."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import numpy as np

from p4reduce import Communicator
from p4reduce.control.channel import Tls
from p4reduce.control.diagnostics import counted
from p4reduce.control.finding import Finding
from p4reduce.errors import P4ReduceError

_TIMEOUT = 15.0


def joined(controller: str, token: str | None, tls: Tls | None, switch: str = "") -> Iterator[Finding]:
    """Run the job. `switch`: the name of this host's switch, if the HELLO path to it is to be checked."""
    subject = "HELLO path" + (f" to {switch}" if switch else "")
    before = time.monotonic()
    try:
        with Communicator(
            controller,
            job=f"doctor-{secrets.token_hex(4)}",
            rank=0,
            world_size=1,
            slots=8,
            token=token,
            tls=tls,
            timeout=_TIMEOUT,
            switch=switch or None,
            local="off",
        ) as communicator:
            took = time.monotonic() - before
            yield Finding(subject, "ok", f"a job of one rank was ready after {took * 1000:.0f} ms")
            tensor = np.arange(100_000, dtype=np.int32)
            before = time.monotonic()
            communicator.allreduce(tensor)
            took = time.monotonic() - before
            right = bool((tensor == np.arange(100_000, dtype=np.int32)).all())
            again = communicator.stats().retransmissions
            yield Finding(
                "sum",
                "ok" if right else "problem",
                f"100,000 int32 in {took * 1000:.0f} ms, {counted(again, 'packet')} sent again"
                + ("" if right else ", and wrong"),
                "" if right else "this is a bug: please report it",
            )
    except (P4ReduceError, OSError) as error:
        yield Finding(subject, "problem", str(error), "the message says what the switch has heard, and what to check")
