# SPDX-License-Identifier: Apache-2.0
"""The comparison of the simulator with ns-3 prints its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.measurements import simulated
from tests.support import ns3


def test_the_table_of_ns3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ns3.program()
    out = tmp_path / "points.json"
    monkeypatch.setattr(simulated, "networks", lambda: [simulated.star(4, simulated.Link(queue=0))])
    monkeypatch.setattr(sys, "argv", ["simulated", "--with", "ns3", "--elements", "65536", "--json", str(out)])
    simulated.main()
    said = capsys.readouterr().out
    assert "| star | 4 | 1 | 0% |" in said
    assert "3 of 3 points are within 5 %" in said
    assert [point["density"] for point in json.loads(out.read_text())["ns3"]] == [1.0, 0.1, 0.01]
