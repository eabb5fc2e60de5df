# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that run networks."""

from tests.support.mininet import mininet, start
from tests.support.own_network import alone

__all__ = ["alone", "mininet", "start"]
