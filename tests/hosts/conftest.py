# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that share a stream are skipped where they cannot."""

from tests.support.hostlib.memory import shares_memory

__all__ = ["shares_memory"]
