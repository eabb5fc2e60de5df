# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch --target sim`, which runs the program for Tofino: p4c's intermediate representation of it."""

import p4reduce_targets.sim
from p4reduce.commands.cli import main

from .switch import load_switch

p4reduce_targets.sim.load = load_switch  # type: ignore[assignment]
main()
