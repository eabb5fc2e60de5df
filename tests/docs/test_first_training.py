# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/first-training.md, as they stand there, in a network that has the page's addresses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.document_blocks import ROOT, blocks

from .session import run

RANKS = "export P4REDUCE_LOCAL=off OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo"


@pytest.mark.root
@pytest.mark.slow
def test_from_a_bare_switch_to_the_first_training(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    _, certificates, switch, controller, look, train = (  # the first installs
        block.text for block in blocks("docs/first-training.md") if block.language == "sh"
    )
    second = train.replace("--node-rank 0", "--node-rank 1")
    assert second != train
    script = "\n".join([certificates, switch, controller, look, RANKS, f"({second}) > second &", train])
    said = run(tmp_path, script, set(re.findall(r"10\.0\.0\.\d+", script)), needs="openssl")
    assert "switch 10.0.0.5:9559 Ready" in said
    assert re.search(r"HELLO path .*\bok\b|\bok\b.*HELLO path", said), said
    losses = [float(text) for text in re.findall(r"^step \d+ loss ([\d.]+)$", said, re.MULTILINE)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2
    assert re.search(r": [1-9]\d* packets sent$", said, re.MULTILINE), said
