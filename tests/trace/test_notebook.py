# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from top to bottom: with a job of its own, and with the trace that is beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_network import Namespace

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = DOCS / "rounds.ipynb"


def run(folder: Path, before: str = "", **changed: int) -> str:
    """Run the notebook's cells beside the recorded trace, of which some fields are changed, and return their output."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    program = "\n".join([before, *("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")])
    trace = json.loads((DOCS / "rounds.trace.json").read_text())
    (folder / "rounds.trace.json").write_text(json.dumps({**trace, **changed}))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=200,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "rounds.html").stat().st_size > 10_000
    assert json.loads((folder / "rounds.perfetto.json").read_text())["traceEvents"]
    return done.stdout


def test_with_the_trace_beside_it(tmp_path: Path) -> None:
    said = run(tmp_path, "import os; os.geteuid = lambda: 1000")
    assert "worker 2 is a straggler: the others waited for it during" in said
    assert "slot 0, round" in said
    assert "rounds lost a packet or an answer" in said


def test_with_a_trace_of_packets_that_were_cut(tmp_path: Path) -> None:
    said = run(tmp_path, "import os; os.geteuid = lambda: 1000", cut=5)
    assert "5 packets cut before the end of the header" in said
    assert said.count("not known, as packets are left out of the trace") == 2
    assert "awaited for" not in said
    assert "rounds lost" not in said


@pytest.mark.root
@pytest.mark.slow
def test_with_a_job_of_its_own(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to record packets")
    with contextlib.closing(Namespace()) as namespace, namespace.entered():
        said = run(tmp_path)
    assert "worker 2 is a straggler: the others waited for it during" in said
    assert "a straggler" in said


def test_it_holds_no_outputs() -> None:
    """Outputs would be those of one machine at one time."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs")
