# SPDX-License-Identifier: Apache-2.0
"""The command line of p4reduce, in which the target sim runs the program for Tofino, from p4c's IR."""

import p4reduce_targets.sim
from p4reduce.commands.cli import main

from .switch import load_switch

p4reduce_targets.sim.load = load_switch  # type: ignore[assignment]
main()
