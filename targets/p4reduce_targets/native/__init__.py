# SPDX-License-Identifier: Apache-2.0
"""The native switch: the aggregator in C (targets/csrc), for servers without a programmable switch.

Its packets are byte for byte those of the P4 program. It refuses every other program.
"""

from p4reduce_targets.native.dataplane import NativeDataPlane
from p4reduce_targets.native.library import LibraryMissing
from p4reduce_targets.native.loading import load
from p4reduce_targets.native.switch import NativeSwitch

__all__ = ["LibraryMissing", "NativeDataPlane", "NativeSwitch", "load"]
