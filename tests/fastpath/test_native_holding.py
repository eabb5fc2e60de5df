# SPDX-License-Identifier: Apache-2.0
"""Operations are held in C as in Python, also those that a caller's thread carries."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Operation
from tests.support.hostlib import engines
from tests.support.hostlib.engines import NativeRank
from tests.support.hostlib.holding import hold
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

ranks = partial(engines.ranks, NativeRank)


def test_the_time_limit_of_a_caller_runs(switch: UdpSwitch) -> None:
    with ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        hold([engine])[0].wait(0, quiet=True)
        operation = Operation(np.ones(4, np.float32))
        prepared = engine.prepare(operation, "again")
        assert prepared is not None
        error = engine.run_inline(prepared, operation, 0.3)
        assert isinstance(error, CollectiveTimeout)
        assert "again did not end within 0.3 s: the controller has paused operations" in str(error)


def test_threads_that_tell_end(switch: UdpSwitch) -> None:
    def holding() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.endswith("hold")]

    with ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        assert isinstance(engine, NativeEngine)
        for _ in range(5):
            hold([engine])
        wait_until(lambda: len(holding()) == 1, "the others to end")
        engine.go_on(0, 0)
        wait_until(lambda: not holding(), "the last to end")
        hold([engine])
    wait_until(lambda: not holding(), "the one of the closed engine to end")
