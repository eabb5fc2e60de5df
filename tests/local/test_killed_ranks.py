# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, or stopped, while they write to each other's tensors."""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.hostlib.sums import SEED

ROOT = Path(__file__).parents[2]
RANKS = 3


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_have_their_tensors_to_themselves(how: signal.Signals, attempt: int) -> None:
    """At whatever moment; who is stopped goes on when they have given up, and finds nothing to spoil."""
    chance = random.Random(f"{SEED} {how} {attempt}")
    secret = secrets.randbits(63)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.local.killed_rank", str(rank), str(RANKS), str(secret)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "there\n"
        time.sleep(0.02 + 0.1 * chance.random())
        gone = chance.choice(ranks)
        gone.send_signal(how)
        time.sleep(0.03 * chance.random())
        others = [rank for rank in ranks if rank is not gone]
        for rank in others:
            assert rank.stdin is not None
            rank.stdin.write("fail\n")
            rank.stdin.flush()
        if how == signal.SIGSTOP:
            time.sleep(0.1)
            gone.send_signal(signal.SIGCONT)
        for rank in others:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "kept\n"
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
