# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a Tofino's control plane."""

from __future__ import annotations

import asyncio

from tests.measurements.bfrt import measure, rows, table


def test_a_job_takes_few_calls_and_little_time() -> None:
    made = rows(asyncio.run(measure(workers=32, slots=32, repeat=2)))
    install, reset, counters, status, remove = made
    assert install["bfrt_writes"] == remove["bfrt_writes"] == 2  # the job, and its hosts
    assert install["bfrt_updates"] == remove["bfrt_updates"] == 4 * 32 + 1
    assert install["bfrt_reads"] == reset["bfrt_writes"] == 0
    assert counters["bfrt_entries"] > 2 * 512  # the losses of all ports
    assert counters["bfrt_reads"] <= 2
    assert status["bfrt_entries"] > counters["bfrt_entries"]
    assert install["processor_ms"] < 100, "a job of 32 workers may take 100 ms"
    assert table(made).count("\n") == 6
