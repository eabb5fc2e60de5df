# SPDX-License-Identifier: Apache-2.0
"""The aggregator in C (targets/csrc), for servers without a programmable switch.

It does what the P4 program does, byte for byte, and refuses every other program.
"""

from .dataplane import NativeDataPlane
from .library import LibraryMissing

__all__ = ["LibraryMissing", "NativeDataPlane"]
