# SPDX-License-Identifier: Apache-2.0
"""An emulated topology: Mininet's hosts and links, the switches between them, and a controller that configures them.

Everything is in the network namespace of the process that creates a `Network`. In a namespace of its own, nothing
remains when its last process ends. In any other, the next `Network` removes the interfaces that a killed process left.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mininet.log import setLogLevel
from mininet.net import Mininet

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.links import shape
from p4reduce_bench.allreduce.reducers import interface_counts
from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_bench.processes.network import check_rights, run, without_ipv6
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU
from p4reduce_targets import offloads
from p4reduce_topos.emulation import control, leftovers
from p4reduce_topos.emulation.namespaces import end_processes, entered
from p4reduce_topos.emulation.nodes import EmulatedLink, Net, P4Switch
from p4reduce_topos.emulation.prompt import Prompt
from p4reduce_topos.emulation.settings import forwarding_settings, settings
from p4reduce_topos.emulation.signals import ENDING, postponed
from p4reduce_topos.model import Link, Topology

_FIRST_GRPC_PORT = 9559
_TOOLS = {"mnexec": "mininet", "ifconfig": "net-tools", "ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}


def check_tools() -> None:
    """Raise P4ReduceError naming what is missing on this machine."""
    if os.geteuid() != 0:
        raise P4ReduceError("a network of hosts and links needs network namespaces, which only root can make")
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise P4ReduceError(f"{tool} is not on PATH: it comes with the package {package}")
    check_rights("mnexec", "-n", "true")


class Network:
    """An emulated network, for use as a context manager.

    All its processes run when the block is entered. Nothing remains when the block is left.
    """

    def __init__(
        self,
        topology: Topology,
        target: str = "native",
        *,
        controller_options: Sequence[str] = (),
        pcap: Path | None = None,
        unchecked: bool = False,
        mtu: int = DEFAULT_MTU,
        pipeline: Path | None = None,
    ) -> None:
        """Prepare a network. Raises P4ReduceError if a tool or a right is missing.

        target: the target that runs every switch.
        pcap: a folder for a capture of every switch port.
        unchecked: frames that a link has corrupted arrive, although their check sequence is wrong.
        mtu: the MTU of all links, which also selects the build of the P4 program.
        pipeline: a folder with another P4 program for every switch, as p4src/compile.py writes it.
        """
        check_tools()
        self.topology = topology
        self.target = target
        self.controller: Child | None = None
        self._controller_options = controller_options
        self._pcap = pcap
        self._unchecked = unchecked
        self._mtu = mtu
        self._program = [] if pipeline is None else ["--pipeline", str(pipeline.absolute())]
        self.processes = ChildProcesses()
        self._files = tempfile.TemporaryDirectory(prefix="p4reduce-topo-")
        self._folder = Path(self._files.name)
        setLogLevel("warning")
        Mininet.inited = True  # or else Mininet raises limits of the whole machine
        self.mininet = Net(self._add_arp_entries, controller=None, build=False)
        self._namespace_lock: socket.socket | None = None
        self._closed = False
        self._emulators: dict[int, Child] = {}

    def __enter__(self) -> Network:
        try:
            self._namespace_lock = leftovers.lock_namespace()
        except P4ReduceError:
            self._files.cleanup()
            raise
        atexit.register(self._close_at_exit)  # a signal may end the process without __exit__
        try:
            leftovers.remove_interfaces()
            self._build()
            for switch in self.mininet.switches:
                switch.start()
            for switch in self.mininet.switches:
                switch.wait()
            self._start_forwarding()
            self.start_controller()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove all interfaces. Signals are postponed meanwhile. A second call does nothing."""
        with postponed():
            if self._closed:
                return
            with contextlib.ExitStack() as last:  # the other steps also run if one fails
                last.callback(atexit.unregister, self._close_at_exit)
                last.callback(self._files.cleanup)
                if self._namespace_lock is not None:
                    last.callback(self._namespace_lock.close)
                    last.callback(leftovers.remove_interfaces)
                last.callback(self._stop_nodes)
                last.callback(self.processes.__exit__)
            self._closed = True

    def _close_at_exit(self) -> None:
        """Close the network when the program exits; signals, which could interrupt that, are ignored."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        self.close()

    def _stop_nodes(self) -> None:
        """Kill the processes of all hosts and switches, and delete their interfaces.

        Mininet's own `stop` does not serve: it sends commands to each node's shell, and fails if the shell is busy.
        """
        net = self.mininet
        for term in net.terms:
            term.kill()
        end_processes([host.pid for host in net.hosts if host.shell])
        for switch in net.switches:
            if switch.shell:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(switch.shell.pid, signal.SIGKILL)
        for node in [*net.hosts, *net.switches]:
            node.cleanup()
        here = {name for _, name in socket.if_nameindex()}
        for link in net.links:
            for interface in (link.intf1, link.intf2):
                if interface.node in net.switches and interface.name in here:
                    with contextlib.suppress(P4ReduceError):  # it was deleted with the host's namespace
                        run("ip", "link", "delete", interface.name)

    # Construction.

    def _build(self) -> None:
        topology, net = self.topology, self.mininet
        run("ip", "link", "set", "lo", "up")
        without_ipv6("default")
        for host in topology.hosts:
            made = net.addHost(host, ip=f"{topology.ip(host)}/16", mac=topology.mac(host))
            made.cmd("sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1")
        for index, switch in enumerate(topology.switches):
            command = ["switch", "--target", self.target, "--grpc", self.grpc(switch)]
            net.addSwitch(switch, cls=P4Switch, dpid=f"{index + 1:x}", processes=self.processes, command=command)
        for link in topology.links:
            net.addLink(
                link.a,
                link.b,
                port1=topology.port(*link.ends),
                port2=topology.port(*reversed(link.ends)),
                intfName1=topology.interface(*link.ends),
                intfName2=topology.interface(*reversed(link.ends)),
                **(
                    {"cls": EmulatedLink, "inner": self._inner_interfaces(link), "mtu": self._mtu}
                    if link.properties.impairments
                    else {}
                ),
            )
        net.build()
        for link in topology.links:
            for end in link.ends:
                if end in topology.switches:
                    leftovers.mark(topology.interface(end, link.other(end)))
                self._configure(end, link)
        for host in topology.hosts:
            self._add_arp_entries(host)
        for number, link in enumerate(topology.links):
            if link.properties.impairments:
                self._start_emulator(number, link)
        for child in self._emulators.values():
            child.first(START_UP_S)
        control.make({host: self.mininet[host].pid for host in topology.hosts})
        if self._pcap is not None:
            self._capture(self._pcap)

    def _inner_interfaces(self, link: Link) -> tuple[str, str]:
        """Return the two inner interfaces of a link with impairments, between which a process passes frames."""
        number = [one.ends for one in self.topology.links].index(link.ends)
        return f"link{number}a", f"link{number}b"

    def _start_emulator(self, number: int, link: Link) -> None:
        """Start the process that passes the frames of a link with impairments."""
        options = [part for name, value in link.properties.impairments.items() for part in (f"--{name}", str(value))]
        options += ["--seed", str(number + 1), *(["--unchecked"] if self._unchecked else [])]
        name = f"emulator of the link from {link.a} to {link.b}"
        self._emulators[number] = self.processes.start(
            name, "p4reduce_topos.emulation.link_emulator", *self._inner_interfaces(link), *options
        )

    def _configure(self, node: str, link: Link) -> None:
        """Disable offloads at one end of a link, so that frames are as on a real wire, and set its MTU and rate."""
        interface = self.topology.interface(node, link.other(node))
        with entered(self.mininet[node].pid):
            offloads.switch_off(interface, checksums=True)
            run("ip", "link", "set", interface, "mtu", str(self._mtu))
            if link.properties.rate:
                run(*shape(interface, link.properties.rate, link.properties.queue, self._mtu))

    def _add_arp_entries(self, host: str) -> None:
        """Add static ARP entries for all switches to a host.

        A switch answers ARP at the port where the request arrived. With several paths that may not lead to the host.
        """
        topology = self.topology
        with entered(self.mininet[host].pid):
            for switch in topology.switches:
                where = ["dev", topology.interface(host, topology.ports(host)[1])]
                run("ip", "neighbour", "replace", topology.ip(switch), "lladdr", topology.mac(switch), *where)

    def _capture(self, folder: Path) -> None:
        """Start a capture of both directions of every switch port, into files that Wireshark reads."""
        tool = shutil.which("dumpcap") or shutil.which("tcpdump")
        if tool is None:
            raise P4ReduceError("--pcap needs dumpcap (package wireshark-common) or tcpdump on PATH")
        folder.mkdir(parents=True, exist_ok=True)
        for switch in self.topology.switches:
            for other in self.topology.ports(switch).values():
                interface = self.topology.interface(switch, other)
                command = [tool, "-q", "-i", interface, "-w", str(folder / f"{interface}.pcap")]
                self.processes.children.append(Child(f"capture of {interface}", command))

    # Switches and their controller.

    def grpc(self, switch: str) -> str:
        """Return the address at which a switch's P4Runtime server listens."""
        return f"127.0.0.1:{_FIRST_GRPC_PORT + self.topology.switches.index(switch)}"

    def start_controller(self) -> None:
        """Start the controller and wait until it serves. It resumes the jobs of a controller that was killed."""
        config = self._folder / "controller.toml"
        config.write_text(settings(self.topology, self.grpc))
        self.controller = self.processes.start(
            "controller", "p4reduce", "controller", "--config", str(config), "--listen", control.CONTROLLER,
            "--insecure", "--state", str(self._folder / "controller.state"), "--mtu", str(self._mtu), "--json",
            *self._program, *self._controller_options,
        )  # fmt: skip
        self.controller.first(START_UP_S)

    def _start_forwarding(self) -> None:
        """Start a controller for each switch that does not aggregate. It only sets up forwarding and has no jobs."""
        started = []
        for switch in self.topology.switches:
            if switch not in self.topology.aggregating:
                config = self._folder / f"{switch}.toml"
                config.write_text(forwarding_settings(self.topology, switch, self.grpc(switch)))
                options = ["--config", str(config), "--listen", "127.0.0.1:0", "--json", *self._program]
                started.append(self.processes.start(f"controller of {switch}", "p4reduce", "controller", *options))
        for child in started:
            child.first(START_UP_S)

    def stop_controller(self, *, kill: bool = False) -> None:
        """Stop the controller.

        kill: use SIGKILL, so that the controller cannot end its jobs first.
        """
        assert self.controller is not None
        self.processes.children.remove(self.controller)
        if kill:
            self.controller.process.kill()
        self.controller.stop()
        self.controller = None

    def restart_switches(self, switches: Sequence[str]) -> None:
        """Restart switches at once. They lose all their state."""
        nodes = [self.mininet[switch] for switch in switches]
        for node in nodes:
            node.stop(deleteIntfs=False)
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()

    def status(self) -> dict[str, Any]:
        """Return the status of the controller, as `p4reduce status --json` prints it."""
        command = [sys.executable, "-m", "p4reduce", "status", "--json", "--controller", control.CONTROLLER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_UP_S, check=False)
        if done.returncode != 0:
            raise P4ReduceError(done.stderr)
        made: dict[str, Any] = json.loads(done.stdout)
        return made

    # Links.

    def set_link(self, a: str, b: str, *, up: bool) -> None:
        self.mininet.configLinkStatus(a, b, "up" if up else "down")

    def change_impairments(self, topology: Topology) -> None:
        """Change the impairments of links to those in `topology`.

        topology: the same topology, with other properties of links. Only links that had impairments at first may
            change.
        """
        for number, (former, link) in enumerate(zip(self.topology.links, topology.links, strict=True)):
            if former.properties != link.properties:
                self.stop(self._emulators[number])
                self._start_emulator(number, link)
                self._emulators[number].first(START_UP_S)
        self.topology = topology

    def partition_controller(self, hosts: Sequence[str], *, cut: bool) -> None:
        """Disconnect hosts from the control network, or connect them again."""
        control.partition(hosts, cut=cut)

    def carried(self, a: str, b: str) -> int:
        """Return the bytes that the link between `a` and `b` has carried from `a` to `b`.

        They include headers. A switch's end of the link counts them.
        """
        if a in self.topology.switches:
            return interface_counts(self.topology.interface(a, b))[2]
        return interface_counts(self.topology.interface(b, a))[0]

    # Processes in hosts.

    def start(
        self, host: str, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a command in a host."""
        child = Child(name, ["mnexec", "-a", str(self.mininet[host].pid), *command], environment)
        self.processes.children.append(child)
        return child

    def stop(self, child: Child) -> None:
        """End a process, unless it has ended by itself, and forget it."""
        self.processes.children.remove(child)
        child.stop()

    def environment(self, host: str, *, rank: int, world_size: int) -> dict[str, str]:
        """Return the environment variables of torchrun and p4reduce for a rank at this host."""
        topology = self.topology
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": topology.ip(topology.workers[0]),
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": topology.interface(host, topology.ports(host)[1]),
            "P4REDUCE_CONTROLLER": control.CONTROLLER,
            "P4REDUCE_TRANSPORT": "udp",
            "P4REDUCE_LOCAL": "off",
            **({"P4REDUCE_SWITCH": topology.ports(host)[1]} if topology.has_trees else {}),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def prompt(self) -> None:
        """Open Mininet's prompt, and return when the user leaves it."""
        setLogLevel("output")
        Prompt(self)
