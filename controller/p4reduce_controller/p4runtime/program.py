# SPDX-License-Identifier: Apache-2.0
"""The compiled P4 program: its files, its shape, and how entries of its tables are made.

Names are looked up by their ends, since the name of the outermost control depends on the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import resources
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Any, Protocol

import finsy as fy
from finsy.proto import p4i
from google.protobuf import text_format

from p4reduce.protocol.constants import PARENT
from p4reduce.transport.addresses import is_ipv6, number_in_128_bits
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, build_for
from p4reduce_controller.switches.aggregator import Direction, Heard, Layout, Placement
from p4reduce_controller.switches.frames import OUTCOMES, Endpoint

P4INFO = "p4info.txtpb"
DEVICE_CONFIGS = {"p4reduce.json": "BMv2, sim, native", "p4reduce.bin": "Tofino"}
FLOOD_GROUP = 4095

_TABLES = {
    "jobs": "Ingress.aggregation.admission.jobs",
    "workers": "Egress.delivery.workers",
    "uplinks": "Ingress.aggregation.uplink.uplinks",
    "own_addresses": "Ingress.own_address.own_addresses",
    "own_sources": "Ingress.own_address.own_sources",
    "mac_addresses": "Ingress.forwarding.mac_addresses",
    "router_macs": "Ingress.forwarding.router_macs",
    "ipv4_routes": "Ingress.forwarding.ipv4_routes",
    "loss_in": "Ingress.drop_simulator.loss_rates",
    "loss_out": "Egress.drop_simulator.loss_rates",
}
_COUNTERS = {
    "outcomes": "Ingress.aggregation.outcomes",
    "losses_in": "Ingress.drop_simulator.losses",
    "losses_out": "Egress.drop_simulator.losses",
    "forgeries": "Ingress.forgeries",
}
_METER = "Ingress.aggregation.hellos"
_IPV6_BITS = 128
_MEMBERS = "Ingress.aggregation.admission.counted"


class PipelineError(Exception):
    """An error: the pipeline's files are missing, or are not those of the aggregator."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def load_schema(directory: Path | None = None, mtu: int = DEFAULT_MTU) -> fy.P4Schema:
    """Load P4Info and device config from `directory`, or from the installed build for links of this MTU."""
    try:
        root = directory or resources.files("p4reduce_controller.compiled") / build_for(mtu).folder
    except ModuleNotFoundError:
        raise PipelineError("the compiled P4 program is not installed here; name its directory (--pipeline)") from None
    info, configs = root / P4INFO, [root / name for name in DEVICE_CONFIGS if (root / name).is_file()]
    if not info.is_file():
        raise PipelineError(f"there is no {info}; compile the P4 program first")
    if not configs:
        files = " nor a ".join(f"{name} ({targets})" for name, targets in DEVICE_CONFIGS.items())
        raise PipelineError(f"{root} has neither a {files}; compile the P4 program first")
    if len(configs) > 1:
        raise PipelineError(f"{root} has {' and '.join(DEVICE_CONFIGS)}, programs for different targets: remove one")
    p4info = text_format.Parse(info.read_text("utf-8"), p4i.P4Info())
    # finsy 0.30 cannot load an alias that is a full name of three parts. Actions of a control with two instances have
    # such aliases.
    for action in p4info.actions:
        if action.preamble.alias == action.preamble.name:
            action.preamble.alias = action.preamble.name.replace(".", "_")
    return fy.P4Schema(p4info, configs[0].read_bytes())


class Program:
    """Entries for the tables of one compiled program, and its `layout`."""

    def __init__(self, schema: fy.P4Schema) -> None:
        self.schema = schema
        self.layout = _layout_of(schema)
        there = [table.name for table in schema.tables]
        self._tables = {
            key: _find(schema.tables, suffix, "table")
            for key, suffix in _TABLES.items()
            if key != "uplinks" or any(name.endswith(suffix) for name in there)  # a program may be for roots only
        }
        self._counters = {key: _find(schema.counters, suffix, "counter") for key, suffix in _COUNTERS.items()}
        self._hellos = _find(schema.meters, _METER, "meter")
        # Programs of earlier releases have no such counter.
        self._members = next((one.name for one in schema.direct_counters if one.name.endswith(_MEMBERS)), "")
        fields = schema.tables[self._tables["jobs"]].match_fields
        self.knows_vlans = any(field.name == "vlan" for field in fields)
        self.knows_ipv6 = any(field.name == "source_ip" and field.bitwidth == _IPV6_BITS for field in fields)
        cells = schema.counters[self._counters["outcomes"]].size
        if cells != len(OUTCOMES):
            raise PipelineError(f"its counter `outcomes` has {cells} cells, and this controller knows {len(OUTCOMES)}")

    # Entries of jobs.

    def missing_for(self, job: Placement) -> str:
        """Return what the job needs and the program lacks, or ""."""
        if job.parent is not None and "uplinks" not in self._tables:
            return "its program cannot run on a leaf: it has no table `uplinks`"
        in_vlan = next((worker for worker in job.workers if worker.vlan), None)
        if in_vlan is not None and not self.knows_vlans:
            where = f"{in_vlan.sender} at port {in_vlan.port} is in VLAN {in_vlan.vlan}"
            return f"its program admits only workers without a VLAN tag, and {where}"
        return ""

    def admissions(self, job: Placement, parent_lag: tuple[int, ...] = ()) -> list[fy.P4TableEntry]:
        """Return the entries that admit the workers, and the parent, at each port of their groups.

        `parent_lag`: the group of the port toward the parent, if it is in one.
        """
        members = [(index, worker.ports, worker.vlan, worker.sender) for index, worker in enumerate(job.workers)]
        if job.parent is not None:
            members.append((PARENT, parent_lag or (job.parent.port,), 0, job.parent.endpoint))
        return [
            self._entry(
                "jobs",
                {
                    "ingress_port": port,
                    "source_ip": self._address(sender.ip),
                    "source_port": sender.udp_port,
                    "job": job.job,
                    "generation": job.generation,
                    "worker": index,
                    **({"vlan": vlan} if self.knows_vlans else {}),
                },
                "admit",
                worker_bit=1 << index,
                full_bitmap=sum(1 << index for index, *_ in members),
                pool_base=2 * job.slots.first,
                pool_halves=2 * job.slots.count,
                group=job.group,
            )
            for index, ports, vlan, sender in members
            for port in ports
        ]

    def uplinks(self, job: Placement) -> list[fy.P4TableEntry]:
        if job.parent is None or "uplinks" not in self._tables:
            return []
        way = {"port": job.parent.port, **self._endpoint(job.parent.endpoint), "worker": job.parent.worker}
        return [self._entry("uplinks", {"job": job.job}, "uplink", **way)]

    def deliveries(self, job: Placement) -> list[fy.P4TableEntry]:
        return [self._delivery(job.job, index + 1, worker) for index, worker in enumerate(job.workers)]

    def _delivery(self, job: int, instance: int, worker: Heard) -> fy.P4TableEntry:
        match, address = {"job": job, "instance": instance}, self._endpoint(worker.sender)
        if worker.vlan and self.knows_vlans:
            return self._entry("workers", match, "address_in_vlan", **address, vlan=worker.vlan)
        return self._entry("workers", match, "address", **address)

    def job_group(self, job: Placement) -> fy.P4MulticastGroupEntry:
        """Return the job's multicast group, with one replica for each worker, even if workers share a port."""
        replicas = [(worker.port, index + 1) for index, worker in enumerate(job.workers)]
        return fy.P4MulticastGroupEntry(job.group, replicas=replicas)

    # Entries of the switch itself.

    def own_address(self, ip: str, mac: str) -> fy.P4TableEntry:
        return self._entry("own_addresses", {"address": self._address(ip)}, "own", mac=mac)

    def own_source(self, ip: str) -> fy.P4TableEntry:
        """Return the entry that treats frames from this address as forged, since only the switch may use it."""
        return self._entry("own_sources", {"address": self._address(ip)}, "forged")

    def host(self, mac: str, port: int) -> fy.P4TableEntry:
        return self._entry("mac_addresses", {"mac": mac}, "forward", port=port)

    def router_mac(self, mac: str) -> fy.P4TableEntry:
        return self._entry("router_macs", {"mac": mac}, "NoAction")

    def route(self, destination: IPv4Network, port: int, source_mac: str, next_hop_mac: str) -> fy.P4TableEntry:
        action = {"port": port, "source_mac": source_mac, "next_hop_mac": next_hop_mac}
        return self._entry("ipv4_routes", {"destination": str(destination)}, "route", **action)

    def flood_group(self, ports: Iterable[int]) -> fy.P4MulticastGroupEntry:
        return fy.P4MulticastGroupEntry(FLOOD_GROUP, replicas=list(ports))

    def flood_unknown(self) -> fy.P4TableEntry:
        """Return the default entry that floods frames to unknown hosts."""
        return self._entry("mac_addresses", {}, "flood", group=FLOOD_GROUP)

    def discard_unknown(self) -> fy.P4TableEntry:
        """Return the default entry that the program starts with."""
        return self._entry("mac_addresses", {}, "discard")

    def loss(self, port: int, direction: Direction, rate: float) -> fy.P4TableEntry:
        """Return the entry for artificial loss. `rate`: the share of packets to lose, 0 to 1."""
        threshold = min(round(rate * 2**32), 2**32 - 1)
        return self._entry(f"loss_{direction}", {"port": port}, "lose", threshold=threshold)

    def hello_limits(self, rate: int | None) -> list[fy.P4MeterEntry]:
        """Return the meters of all ports. `rate`: HELLOs a second, and as many in a burst; None: unlimited."""
        config = None if rate is None else fy.P4MeterConfig(cir=rate, cburst=rate, pir=rate, pburst=rate)
        ports = range(self.schema.meters[self._hellos].size)
        return [fy.P4MeterEntry(self._hellos, index=port, config=config) for port in ports]

    # Entries to read.

    def every_entry(self) -> list[fy.P4TableEntry]:
        return [fy.P4TableEntry(table) for table in self._tables.values()]

    def counter(self, name: str) -> fy.P4CounterEntry:
        """Return the request for all cells of one of _COUNTERS."""
        return fy.P4CounterEntry(self._counters[name])

    def members(self) -> list[fy.P4DirectCounterEntry]:
        """Return the request for what each member of each job has sent; [] if the program does not count that."""
        return [fy.P4DirectCounterEntry(self._members)] if self._members else []

    def _endpoint(self, endpoint: Endpoint) -> dict[str, Any]:
        return {"mac": endpoint.mac, "ip": self._address(endpoint.ip), "udp_port": endpoint.udp_port}

    def _address(self, ip: str) -> int:
        """Return an address as the tables have it. Raises ValueError for one of IPv6 if they have only IPv4's."""
        if self.knows_ipv6:
            return number_in_128_bits(ip)
        if is_ipv6(ip):
            raise ValueError(f"address {ip}: the switch's program accepts only IPv4")
        return int(ip_address(ip))

    def _entry(self, table: str, match: dict[str, Any], action: str, **arguments: Any) -> fy.P4TableEntry:
        name = self._tables[table]
        # Actions are in the control of their table, except those that P4 itself defines.
        full_action = action if action == "NoAction" else f"{name.rpartition('.')[0]}.{action}"
        return fy.P4TableEntry(
            name,
            match=fy.Match(match) if match else None,
            action=fy.Action(full_action, **arguments),
            is_default_action=not match,
        )


def _find(entities: Iterable[_Named], suffix: str, what: str) -> str:
    names = [entity.name for entity in entities if entity.name.endswith(suffix)]
    if len(names) != 1:
        raise PipelineError(f"its P4Info has {len(names)} {what}s whose name ends in {suffix}; exactly 1 is needed")
    return names[0]


def _layout_of(schema: fy.P4Schema) -> Layout:
    """Return the layout, after checking that all lanes have the same registers, with one cell per slot half."""
    values = set(_sums(schema))
    lanes = {lane for lane, _, _ in values}
    block = {index for _, index, _ in values}
    halves = {size for _, _, size in values}
    if not values or len(halves) != 1 or len(values) != len(lanes) * len(block):
        raise PipelineError(
            "its P4Info lacks the registers laneI.valueJ.sums (or pairJ) of the aggregator, or some of them"
        )
    return Layout(lanes=len(lanes), block_size=len(block), slots=halves.pop() // 2)


def _sums(schema: fy.P4Schema) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Yield lane, name of the value and number of cells of every sum. A cell of a pair's register holds two sums."""
    for register in schema.registers:
        if found := re.search(r"\.lane(\d+)\.(value|pair)(\d+)\.sums$", register.name):
            for word in range(2 if found[2] == "pair" else 1):
                yield int(found[1]), (int(found[3]), word), register.size


__all__ = ["FLOOD_GROUP", "PipelineError", "Program", "load_schema"]
