# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that record packets."""

from tests.support.own_network import alone

__all__ = ["alone"]
