# SPDX-License-Identifier: Apache-2.0
"""Simulation of p4reduce in virtual time: the C worker and the native switch on modelled links and processors.

`simulate(network, workload)` returns a `Result`. docs/simulator.md describes the model.
"""

from p4reduce_simulator.network import Cable, Host, Link, Network, Switch, clos, star
from p4reduce_simulator.running import LinkUse, Result, simulate
from p4reduce_simulator.workload import Workload

__all__ = ["Cable", "Host", "Link", "LinkUse", "Network", "Result", "Switch", "Workload", "clos", "simulate", "star"]
