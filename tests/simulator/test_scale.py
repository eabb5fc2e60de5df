# SPDX-License-Identifier: Apache-2.0
"""A thousand ranks in one process: exact sums, one worker's bytes between switches, and bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RANKS, MOST_BYTES = 1024, 4 << 30

_PROGRAM = """
import json, resource, sys
from p4reduce_simulator import Link, Workload, clos, simulate

network = clos({ranks}, 64, spines=4, pods=8, edge=Link(rate=4 * 10**11))
result = simulate(network, Workload(numel=1 << 16, density={density}), slots=256)
worker = [link.bytes for link in result.links if link.source.startswith("rank")]
leaves = [
    sum(link.bytes for link in result.links if link.source == leaf and link.destination.startswith("pod"))
    for leaf in {{link.source for link in result.links if link.source.startswith("leaf")}}
]
peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
json.dump({{"exact": result.exact, "worker": worker, "leaves": leaves, "peak": peak}}, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("density", [1.0, 0.01])
def test_a_thousand_ranks(tmp_path: Path, density: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(ranks=RANKS, density=density)],
        cwd=tmp_path, stdout=subprocess.PIPE, check=True, timeout=850,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["exact"]
    assert found["peak"] < MOST_BYTES
    assert len(found["worker"]) == RANKS
    assert len(found["leaves"]) == 64
    if density == 1:
        assert set(found["leaves"]) == set(found["worker"])  # over all its spines
    else:  # the union of a rack's blocks is no more than all that its ranks send
        assert max(found["leaves"]) <= 16 * max(found["worker"])
