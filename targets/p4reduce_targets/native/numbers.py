# SPDX-License-Identifier: Apache-2.0
"""Limits of the native switch. They equal those in native.h, meter.h, tables.h and plane.h in targets/csrc."""

from __future__ import annotations

MAX_ARGUMENTS = 5
"""The most arguments of an action."""
METER_LIMIT = (1 << 32) - 1
"""The largest rate and burst of a meter."""
MAX_THREADS = 64
MAX_FRAME = 80 << 10
"""The size of the buffer for a packet-in, in bytes."""
