# SPDX-License-Identifier: Apache-2.0
"""The aggregator in C (targets/csrc), for servers without a programmable switch.

It does what the P4 program does, byte for byte, and refuses every other program.
"""

from p4reduce_targets.native.dataplane import NativeDataPlane
from p4reduce_targets.native.library import LibraryMissing
from p4reduce_targets.native.loading import load
from p4reduce_targets.native.switch import NativeSwitch

__all__ = ["LibraryMissing", "NativeDataPlane", "NativeSwitch", "load"]
