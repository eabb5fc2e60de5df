# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that share a stream are skipped where they cannot."""

from __future__ import annotations

import sys
from pathlib import Path

from ..local.conftest import shares_memory

__all__ = ["shares_memory"]

for folder in ("protocol", "hostlib"):  # for the model of the switch
    sys.path.append(str(Path(__file__).parents[1] / folder))
