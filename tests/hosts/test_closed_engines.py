# SPDX-License-Identifier: Apache-2.0
"""An engine that is closed, of ranks that share memory: it has given that back, and what is asked of it is answered."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from p4reduce.errors import P4ReduceError
from p4reduce.protocol import Operation

from ..local.engines import Ending, ranks
from .job import job
from .test_sharing_engine import shared_kib


@pytest.mark.parametrize("kind", ["hosts", "local"])
def test_memory_is_given_back_when_it_is_closed(kind: str) -> None:
    running: Any
    with job((0, 0, 1)) if kind == "hosts" else ranks(3) as running:
        running.reduce([Operation(np.ones(300_000, np.float32)) for _ in range(3)])
        assert shared_kib() > 100
    assert shared_kib() == 0
    for engine in running.engines:
        assert engine.stats.operations == 1


@pytest.mark.parametrize("kind", ["hosts", "local"])
def test_what_is_asked_after_the_end_is_answered(kind: str) -> None:
    """In threads, too, that have a number which the engine's thread has had."""
    running: Any
    with job((0, 0, 1)) if kind == "hosts" else ranks(3) as running:
        running.reduce([Operation(np.ones(100, np.float32)) for _ in range(3)])
    answers: list[str] = []
    barrier = threading.Barrier(20)

    def ask() -> None:
        barrier.wait()  # so that each has a number of its own
        for engine in running.engines:
            answers.append(engine.progress() + engine.link())
            with pytest.raises(P4ReduceError):
                engine.submit(Operation(np.ones(1, np.float32)), name="", timeout=1, on_end=Ending())

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 60
