# SPDX-License-Identifier: Apache-2.0
"""The README's example sends packets through the switch."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.cluster.stack import over_udp
from tests.support.document_blocks import ROOT, only

EXAMPLE = ROOT / "examples" / "sum.py"


def test_the_readme_shows_the_example() -> None:
    shown = only("README.md", "import numpy").text.split()
    assert EXAMPLE.read_text().split()[-len(shown) :] == shown


def test_both_ranks_send_packets_and_have_the_sum() -> None:
    with over_udp(target="native") as stack:
        given = {**os.environ, "P4REDUCE_CONTROLLER": stack.controller, "P4REDUCE_LOCAL": "off", "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [sys.executable, EXAMPLE], env={**given, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=60)[0].split() for rank in ranks]
    for rank, words in enumerate(said):
        assert words[:5] == ["rank", f"{rank}:", "sum", "128,", "packets"]
        assert int(words[-1]) > 0
