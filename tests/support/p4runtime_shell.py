# SPDX-License-Identifier: Apache-2.0
"""The Python interpreter in whose environment p4runtime-shell is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN_PYTHON = ROOT / ".venv-p4runtime-shell" / "bin" / "python"


def shell_python() -> str:
    path = os.environ.get("P4REDUCE_P4RUNTIME_SHELL_PYTHON", str(OWN_PYTHON))
    if not Path(path).exists():
        pytest.skip(f"p4runtime-shell is not here: neither P4REDUCE_P4RUNTIME_SHELL_PYTHON nor {OWN_PYTHON} exists")
    return path
