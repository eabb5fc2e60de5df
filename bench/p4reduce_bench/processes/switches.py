# SPDX-License-Identifier: Apache-2.0
"""Switches of this machine, as child processes: for the demo and for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.children import Family
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU

START_UP_S = 60.0


def check_aggregators(target: str, aggregators: int) -> None:
    """Raise P4ReduceError where so many switches of a target cannot be had."""
    if aggregators > 1 and target == "bmv2":
        raise P4ReduceError(
            f"--aggregators {aggregators} with --target bmv2: each worker has one cable, to one switch; accepted are "
            "sim and native"
        )


def describe(target: str, aggregators: int, mtu: int = DEFAULT_MTU) -> str:
    """ "native", or "2 x native, MTU 9000"."""
    switches = target if aggregators == 1 else f"{aggregators} x {target}"
    return switches if mtu == DEFAULT_MTU else f"{switches}, MTU {mtu}"


def start_switches(
    family: Family,
    target: str,
    ports: Sequence[str],
    *,
    address: str = "",
    aggregators: int = 1,
    options: Sequence[str] = (),
) -> list[str]:
    """Start switches that share the slots of jobs; give the controller's options for them.

    ports: of each, as "1=udp:127.0.0.1:0". address: of the aggregator; by default its first port's.
    options: more of them for each switch.
    """
    flags = [part for port in ports for part in ("--port", port)]
    switches = [
        family.start(f"switch ({target})", "p4reduce", "switch", "--target", target, *flags, *options,
                     "--grpc", "127.0.0.1:0", "--json")
        for _ in range(aggregators)
    ]  # fmt: skip
    places = []
    for switch in switches:
        ready = switch.first(START_UP_S)
        places += ["--switch", ready["grpc"], "--address", address or ready["ports"]["1"].removeprefix("udp:")]
    return [*places, "--ports", ",".join(port.partition("=")[0] for port in ports)]
