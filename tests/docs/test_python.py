# SPDX-License-Identifier: Apache-2.0
"""Blocks of Python, run in what they take as given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.stack import Stack, over_udp
from tests.support.document_blocks import every
from tests.support.free_ports import free_ports

from .ways import Python, way

PREPARED = Path(__file__).with_name("prepared.py")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack


def test_they_run(stack: Stack, tmp_path: Path) -> None:
    pytest.importorskip("scapy", reason="needs scapy")
    run = [
        (str(block), found.before, block.text) for block in every("python") if isinstance(found := way(block), Python)
    ]
    environment = {
        **os.environ,
        **dict.fromkeys(("RANK", "LOCAL_RANK"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        "GLOO_SOCKET_IFNAME": "lo",
        "P4REDUCE_CONTROLLER": stack.controller,
    }
    done = subprocess.run(
        [sys.executable, str(PREPARED)],
        input=json.dumps(run), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.removeprefix("done ") for line in done.stdout.splitlines() if line.startswith("done ")] == [
        name for name, _, _ in run
    ]
    assert len(run) > 10
