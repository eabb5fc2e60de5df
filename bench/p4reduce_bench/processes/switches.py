# SPDX-License-Identifier: Apache-2.0
"""Switches and controllers of this machine, as child processes, and what their ranks have in the environment."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_bench.processes.network import AGGREGATOR, free_port
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU

START_UP_S = 60.0


def check_aggregators(target: str, aggregators: int) -> None:
    """Raise P4ReduceError if a target cannot have so many switches."""
    if aggregators > 1 and target == "bmv2":
        raise P4ReduceError(
            f"--aggregators {aggregators} with --target bmv2: each worker has one cable, to one switch; accepted are "
            "sim and native"
        )


def describe(target: str, aggregators: int, mtu: int = DEFAULT_MTU) -> str:
    """Return the switches in words: "native", or "2 x native, MTU 9000"."""
    switches = target if aggregators == 1 else f"{aggregators} x {target}"
    return switches if mtu == DEFAULT_MTU else f"{switches}, MTU {mtu}"


def start_switches(
    processes: ChildProcesses, target: str, *, cables: int = 0, host: str = "127.0.0.1", aggregators: int = 1,
    options: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Start switches that share the slots of jobs; return the controller's options for them.

    cables: number of workers that are connected as by `network.star`; 0: workers send UDP to a port of `host`.
    options: more options for each switch.
    """
    ports = [f"{port}=eth:port{port}" for port in range(1, cables + 1)] or [f"1=udp:{host}:0"]
    flags = [part for port in ports for part in ("--port", port)]
    switches = [
        processes.start(f"switch ({target})", "p4reduce", "switch", "--target", target, *flags, *options,
                        "--grpc", "127.0.0.1:0", "--json")
        for _ in range(aggregators)
    ]  # fmt: skip
    controlled: list[str] = []
    for switch in switches:
        ready = switch.first(START_UP_S)
        address = AGGREGATOR if cables else ready["ports"]["1"].removeprefix("udp:")
        controlled += ["--switch", ready["grpc"], "--address", address]
    return [*controlled, "--ports", ",".join(port.partition("=")[0] for port in ports)]


def start_controller(
    processes: ChildProcesses, switches: Sequence[str], *options: str, listen: str = "127.0.0.1:0"
) -> str:
    """Start the controller of some switches, as `start_switches` returns them; return its address."""
    controller = processes.start(
        "controller", "p4reduce", "controller", *switches, "--listen", listen, *options, "--json"
    )
    return str(controller.first(START_UP_S)["listen"])


def rank_environment(rank: int, workers: int, **settings: str) -> dict[str, str]:
    """Return the environment of a rank, which sends for itself unless `local` says otherwise.

    settings: P4REDUCE_ variables, in lower case and without the prefix.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "P4REDUCE_LOCAL": "off",
        **{f"P4REDUCE_{name.upper()}": value for name, value in settings.items()},
    }


def rendezvous(address: str = "127.0.0.1", interface: str = "lo") -> dict[str, str]:
    """Return the variables by which torch's ranks find rank 0, which is at `address`, and the interface of Gloo."""
    port = free_port() if interface == "lo" else 29500  # every port is free in a namespace of its own
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": interface}


def start_ranks(
    processes: ChildProcesses, module: str, workers: int, controller: str, *arguments: str, **settings: str
) -> list[Child]:
    """Start `python -m module arguments` once for each rank, on this machine. settings: as for `rank_environment`."""
    common = {"controller": controller, **settings}
    variables = rendezvous()
    return [
        processes.start(f"rank {rank}", module, *arguments,
                        environment={**variables, **rank_environment(rank, workers, **common)})
        for rank in range(workers)
    ]  # fmt: skip
