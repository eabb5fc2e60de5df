# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that run networks."""

from pathlib import Path

import pytest

from tests.support.document_blocks import only
from tests.support.mininet import mininet, start
from tests.support.own_network import alone

__all__ = ["alone", "mininet", "start"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a file with the topology that the documentation shows."""
    text = only("docs/topologies.md", "def ring").text
    (tmp_path / "own.py").write_text(f"{text}\n\ndef nothing(workers, edge): pass\n")
    return tmp_path / "own.py"
