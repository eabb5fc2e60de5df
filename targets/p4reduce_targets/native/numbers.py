# SPDX-License-Identifier: Apache-2.0
"""The numbers of native.h, tables.h and plane.h in targets/csrc; a test holds this file to them."""

from __future__ import annotations

from enum import IntEnum

MAX_ARGUMENTS = 5
"""Of an action."""
METER_LIMIT = (1 << 32) - 1
"""Of rates and bursts."""
MAX_THREADS = 64
MAX_FRAME = 80 << 10
"""Room for a frame to the controller, in bytes."""


class TableId(IntEnum):
    LOSS_IN = 0
    OWN_ADDRESSES = 1
    JOBS = 2
    MAC_ADDRESSES = 3
    ROUTER_MACS = 4
    ROUTES = 5
    LOSS_OUT = 6
    WORKERS = 7
    UPLINKS = 8
    OWN_SOURCES = 9


class ActionId(IntEnum):
    NO_ACTION = 0
    LOSE = 1
    OWN = 2
    ADMIT = 3
    FORWARD = 4
    FLOOD = 5
    DISCARD = 6
    ROUTE = 7
    UNROUTABLE = 8
    ADDRESS = 9
    UPLINK = 10
    FORGED = 11


class CounterId(IntEnum):
    LOSSES_IN = 0
    OUTCOMES = 1
    LOSSES_OUT = 2
    FORGERIES = 3
