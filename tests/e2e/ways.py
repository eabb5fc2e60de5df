# SPDX-License-Identifier: Apache-2.0
"""The stacks that the tests run on, and the ways on which ranks reach their switches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

from tests.support.cluster.stack import Stack, over_udp, over_wires

STACKS: dict[str, Callable[[], AbstractContextManager[Stack]]] = {
    "sim": over_udp,
    "native": partial(over_udp, target="native"),
    "aggregators": partial(over_udp, target="native", aggregators=3),
    "tree": partial(over_udp, target="native", leaves=2),
    "sim on wires": partial(over_wires, "sim"),
    "native on wires": partial(over_wires, "native"),
    "bmv2 on wires": partial(over_wires, "bmv2"),
}

# The stack of each setting, and the options of ranks there.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "sim-udp": ("sim", {}),
    "native-udp": ("native", {}),
    **{
        f"{target}-{transport}": (f"{target} on wires", {"transport": transport, "interfaces": "worker"})
        for target, transport in (
            ("native", "raw"), ("sim", "raw"), ("bmv2", "udp"), ("bmv2", "raw"), ("bmv2", "scapy"),
        )
    },
    "aggregators": ("aggregators", {}),
    "tree": ("tree", {"at": [1, 2]}),
    "threads": ("native", {"threads": 2}),
    "hosts": ("native", {"local": "auto", "hosts": (0, 1, 0, 1, 1)}),
    "memory": ("sim", {"local": "auto"}),
}  # fmt: skip
ONE_SWITCH = [
    "sim-udp",
    "native-udp",
    pytest.param("native-raw", marks=pytest.mark.root),
    pytest.param("sim-raw", marks=[pytest.mark.root, pytest.mark.slow]),
    pytest.param("bmv2-udp", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
    pytest.param("bmv2-raw", marks=[pytest.mark.root, pytest.mark.bmv2]),
    pytest.param("bmv2-scapy", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
]
