# SPDX-License-Identifier: Apache-2.0
"""A run's trace is written however the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce.trace.model import load
from p4reduce_topos.emulation.recording import recorded
from tests.support.trace_packets import send
from tests.support.waiting import pass_time

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("alone")]


@pytest.mark.parametrize("ended", [P4ReduceError("the script has failed"), KeyboardInterrupt()])
def test_a_run_that_fails_or_is_interrupted_leaves_its_trace(tmp_path: Path, ended: BaseException) -> None:
    said: list[str] = []
    file = tmp_path / "out" / "mine.trace.json"
    with pytest.raises(type(ended)) as raised, recorded(file, said.append):  # noqa: PT012
        send(20)
        pass_time(0.3)
        raise ended
    assert raised.value is ended
    assert load(file).packets == 20
    assert (tmp_path / "out" / "mine.html").exists()
    assert said[-1] == f"written: {file}, {tmp_path / 'out' / 'mine.html'}"


def test_where_nothing_was_recorded_the_runs_own_error_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(P4ReduceError, match="the script has failed"), recorded(tmp_path / "a.trace.json", said.append):
        raise P4ReduceError("the script has failed")
    assert said == ["no trace is written: no packet to or from UDP port 31314 was captured"]
    with pytest.raises(P4ReduceError, match="no packet"), recorded(tmp_path / "a.trace.json", said.append):
        pass
