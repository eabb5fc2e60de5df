# SPDX-License-Identifier: Apache-2.0
"""The desired state of a switch: entries and groups of its own and of jobs.

They are written when they change, and compared with the switch's when the connection is new. If ports go down, entries
that send to them get other ports of the same link group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import finsy as fy
from finsy.proto import p4r

from p4reduce_controller.p4runtime.egress import EgressPorts, Forwarding, ports_of, with_ports, with_ports_of
from p4reduce_controller.p4runtime.link import Link
from p4reduce_controller.p4runtime.program import FLOOD_GROUP, Program
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import DIRECTIONS, Direction, Placement, SwitchError, SwitchUnavailable

log = logging.getLogger(__name__)

_FLOODING = ("group", FLOOD_GROUP)  # the key of the group that frames to unknown hosts are flooded to


@dataclass(frozen=True)
class _Record:
    """An entry that the switch must have, or has.

    `value`: compares equal if entries have the same effect, except that they may send to other ports of a link group.
    `entity`: its message. This is finsy's encoding even of an entry that was read, so equal entries have equal bytes.
    `owner`: the job that it belongs to, if any.
    """

    value: object
    entry: Forwarding
    entity: p4r.Entity
    owner: int | None = None

    @property
    def is_default(self) -> bool:
        return bool(self.entity.table_entry.is_default_action)


class DesiredState:
    """The desired state of one switch.

    `link`: returns its connection, or raises SwitchUnavailable if there is none.
    """

    def __init__(self, config: SwitchConfig, program: Program, link: Callable[[], Link]) -> None:
        self._config = config
        self._program = program
        self._link = link
        # Held from a change of `_wanted` until the switch has it, so that both change in the same order.
        self._writing = asyncio.Lock()
        self.egress = EgressPorts(config.lag_of)
        self._wanted: dict[object, _Record] = {}
        self._unwritten: set[object] = set()  # keys of entries that must move, but perhaps did not yet
        self._rates: dict[tuple[int, Direction], float] = {}
        for entry in _base_entries(config, program):
            self._want(entry, None)
        for port, direction in product(config.ports, DIRECTIONS) if config.drop_rate else ():
            self._want(program.loss(port, direction, config.drop_rate), None)
            self._rates[port, direction] = config.drop_rate
        self._base = frozenset(self._wanted)
        self._learned: dict[object, dict[int, Forwarding]] = {}  # for each host, the entry of each job

    @property
    def loss_rates(self) -> Mapping[tuple[int, Direction], float]:
        return dict(self._rates)

    # Jobs.

    def expect(self, job: Placement) -> None:
        """Record the entries of a job that the switch has already."""
        for entry in self._entries_of(job):
            self._want(entry, job.job)
        for entry in self._hosts_of(job):
            if self._learn(entry, job.job):
                self._want(entry, None)

    async def install(self, job: Placement) -> None:
        if missing := self._program.missing_for(job):
            raise SwitchError(f"the switch at {self._config.target} cannot take the job: {missing}")
        await self._put(self._entries_of(job), owner=job.job)
        new = [entry for entry in self._hosts_of(job) if self._learn(entry, job.job)]
        await self._put_hosts(new)

    async def fence(self, job: Placement) -> None:
        await self._drop(self._admissions(job))

    async def forget(self, job: Placement) -> None:
        program = self._program
        hosts = self._hosts_of(job)
        unused = [entry for entry in hosts if self._unlearn(entry, job.job)]
        await self._drop([*program.uplinks(job), *program.deliveries(job), program.job_group(job), *unused])
        # Other jobs may need a host with the same MAC address at another port, if switches share the address.
        by_host = (self._learned.get(self._canonical(host)[0]) for host in hosts)
        still_used = [next(iter(jobs.values())) for jobs in by_host if jobs]
        missing = [entry for entry in still_used if not self._has(entry)]
        if missing:
            await self._put_hosts(missing)

    async def _put_hosts(self, entries: Sequence[Forwarding]) -> None:
        try:
            await self._try_to_put(entries)
        except SwitchUnavailable:
            raise
        except SwitchError as error:  # frames to an unknown host are flooded, so nothing is lost
            log.warning("%s", error)

    def _learn(self, entry: Forwarding, job: int) -> bool:
        """Record that the job needs the entry. Return whether it is the only job that does."""
        jobs = self._learned.setdefault(self._canonical(entry)[0], {})
        jobs[job] = entry
        return jobs.keys() == {job}

    def _unlearn(self, entry: Forwarding, job: int) -> bool:
        """Record that the job no longer needs the entry. Return whether no job does."""
        key = self._canonical(entry)[0]
        jobs = self._learned.get(key, {})
        jobs.pop(job, None)
        if not jobs:
            self._learned.pop(key, None)
        return not jobs

    def _entries_of(self, job: Placement) -> list[Forwarding]:
        program = self._program
        return [program.job_group(job), *program.deliveries(job), *program.uplinks(job), *self._admissions(job)]

    def _admissions(self, job: Placement) -> list[fy.P4TableEntry]:
        return self._program.admissions(job, self._config.lag_of(job.parent.port) if job.parent is not None else ())

    def _hosts_of(self, job: Placement) -> list[Forwarding]:
        """Return the entries for learned hosts. If switches share a MAC address, the first one's port counts."""
        learned = [self._program.host(mac, port) for mac, port in job.hosts]
        return [entry for entry in self._first_of_each_key(learned) if self._canonical(entry)[0] not in self._base]

    def _first_of_each_key(self, entries: Sequence[Forwarding]) -> list[Forwarding]:
        """Return the entries without those whose key occurs earlier, since a table holds one entry per key."""
        return list({self._canonical(entry)[0]: entry for entry in reversed(entries)}.values())[::-1]

    # Artificial loss.

    async def set_loss(self, port: int, direction: Direction, rate: float) -> None:
        entry = self._program.loss(port, direction, rate)
        if rate > 0:
            await self._try_to_put([entry])
            self._rates[port, direction] = rate
        else:
            await self._drop([entry])
            self._rates.pop((port, direction), None)

    # The whole state.

    async def reconcile(self, link: Link) -> frozenset[int]:
        """Make the switch hold the desired state. Return the jobs of which entries were missing.

        Unknown entries are deleted, and missing ones are written again. The entries of the returned jobs are not, since
        their slots' contents are gone as well. Entries stay at the ports of a link group that an earlier controller
        has chosen.
        """
        async with self._writing:
            present = await self._read(link)
            intact = {
                key for key, wanted in self._wanted.items() if key in present and present[key].value == wanted.value
            }
            lost = {wanted.owner for key, wanted in self._wanted.items() if wanted.owner and key not in intact}
            for key in [key for key, wanted in self._wanted.items() if wanted.owner in lost and wanted.owner]:
                del self._wanted[key]

            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=there.entity)
                for key, there in present.items()
                if key not in self._wanted
            ]
            for key in intact & self._wanted.keys():
                wanted = self._wanted[key]
                self._wanted[key] = self._with(wanted, with_ports_of(wanted.entry, present[key].entry))
            moved = self._leave_ports_that_are_down()
            for key, wanted in self._wanted.items():
                if key not in intact or key in moved:
                    kind = p4r.Update.MODIFY if key in present or wanted.is_default else p4r.Update.INSERT
                    updates.append(p4r.Update(type=kind, entity=wanted.entity))
            await link.write([*updates, *self._limits(self._config.hello_rate)])
            self._unwritten.clear()
            return frozenset(owner for owner in lost if owner is not None)

    async def follow_ports(self, states: Mapping[int, str]) -> None:
        """Move entries from ports that are down to others of their groups. If that fails, it may be tried again."""
        self.egress.update(states)
        await self._move()

    def flooded_port(self, port: int) -> int:
        """Return the port of the port's group to which frames are flooded; `port` if there is none."""
        flooding = self._wanted.get(_FLOODING)
        if flooding is None or not isinstance(flooding.entry, fy.P4MulticastGroupEntry):
            return port
        first = self.egress.first
        return next((one for one in ports_of(flooding.entry) if first(one) == first(port)), port)

    async def flood_to(self, port: int) -> None:
        """Flood frames for the port's group to this port from now on, if they are flooded to one of the group."""
        self.egress.pin(port)
        if self.flooded_port(port) != port or self._unwritten:
            await self._move()

    async def _move(self) -> None:
        async with self._writing:
            link = self._link()
            self._unwritten |= self._leave_ports_that_are_down()
            entities = [self._wanted[key].entity for key in self._unwritten if key in self._wanted]
            await link.write([p4r.Update(type=p4r.Update.MODIFY, entity=entity) for entity in entities])
            self._unwritten.clear()

    async def take_everything_off(self) -> None:
        async with self._writing:
            link = self._link()
            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=wanted.entity)
                for wanted in self._wanted.values()
                if not wanted.is_default
            ]
            self._wanted.clear()
            unknown = self._program.discard_unknown().encode(self._program.schema)
            unlimited = self._limits(None)
            await link.write(
                [p4r.Update(type=p4r.Update.MODIFY, entity=unknown), *updates, *unlimited], missing_ok=True
            )

    def _limits(self, rate: int | None) -> list[p4r.Update]:
        """Return the updates of all HELLO meters.

        The controller owns these, so they are written without being read first.
        """
        limits = self._program.hello_limits(rate)
        return [p4r.Update(type=p4r.Update.MODIFY, entity=one.encode(self._program.schema)) for one in limits]

    async def _read(self, link: Link) -> dict[object, _Record]:
        """Return what the switch has."""
        entries: list[Forwarding] = [
            entry
            async for entry in link.read(self._program.every_entry())
            if not (entry.is_default_action or entry.is_const)
        ]
        entries += [group async for group in link.read([fy.P4MulticastGroupEntry()])]
        return dict(map(self._canonical, entries))

    # Parts of the state.

    def _want(self, entry: Forwarding, owner: int | None) -> p4r.Update | None:
        """Record the desired entry. Return the update that the switch needs for it; None if it needs none."""
        key, record = self._canonical(entry)
        had = self._wanted.get(key)
        if had is not None and had.value == record.value:
            self._wanted[key] = replace(had, owner=owner)
            return None
        record = self._wanted[key] = self._with(replace(record, owner=owner), with_ports(entry, self.egress.live))
        kind = p4r.Update.INSERT if had is None and not record.is_default else p4r.Update.MODIFY
        return p4r.Update(type=kind, entity=record.entity)

    def _leave_ports_that_are_down(self) -> set[object]:
        """Let entries whose ports are down send to others of their groups. Return the keys of those entries."""
        moved = {}
        for key, wanted in self._wanted.items():
            choose = self.egress.flooded if key == _FLOODING else self.egress.live
            if (other := self._with(wanted, with_ports(wanted.entry, choose))) is not wanted:
                moved[key] = other
        self._wanted.update(moved)
        return set(moved)

    def _with(self, record: _Record, entry: Forwarding) -> _Record:
        """Return the record with an entry that only sends to other ports."""
        return record if entry is record.entry else replace(record, entry=entry, entity=self._encode(entry))

    def _has(self, entry: Forwarding) -> bool:
        key, record = self._canonical(entry)
        return key in self._wanted and self._wanted[key].value == record.value

    async def _put(self, entries: Iterable[Forwarding], owner: int | None = None) -> None:
        """Write entries. If that fails, the switch may have some of them, until `_drop` removes them."""
        async with self._writing:
            link = self._link()
            updates = [self._want(entry, owner) for entry in entries]
            await link.write([update for update in updates if update is not None])

    async def _drop(self, entries: Iterable[Forwarding]) -> None:
        """Delete those of the entries that the switch has. If that fails, it may be tried again."""
        async with self._writing:
            link = self._link()
            asked = dict.fromkeys(self._canonical(entry)[0] for entry in entries)
            keys = [key for key in asked if key in self._wanted]
            deletes = [p4r.Update(type=p4r.Update.DELETE, entity=self._wanted[key].entity) for key in keys]
            await link.write(deletes, missing_ok=True)
            for key in keys:
                del self._wanted[key]

    async def _try_to_put(self, entries: Sequence[Forwarding]) -> None:
        """Write optional entries: all or none. Raise the switch's refusal after deleting them again."""
        try:
            await self._put(entries)
        except SwitchUnavailable:
            raise
        except SwitchError:
            await self._drop(entries)
            raise

    def _encode(self, entry: Forwarding) -> p4r.Entity:
        return entry.encode(self._program.schema)

    def _canonical(self, entry: Forwarding) -> tuple[object, _Record]:
        """Return the entry's key, and a record of it without an owner."""
        entity = self._encode(entry)
        at_first = with_ports(entry, self.egress.first)
        compared = entity if at_first is entry else self._encode(at_first)
        if isinstance(entry, fy.P4MulticastGroupEntry):
            group = compared.packet_replication_engine_entry.multicast_group_entry
            replicas = frozenset(one.SerializeToString() for one in group.replicas)
            return ("group", group.multicast_group_id), _Record(replicas, entry, entity)
        table = compared.table_entry
        action = table.action.action
        match = frozenset(one.SerializeToString() for one in table.match)
        value = (action.action_id, frozenset((one.param_id, one.value) for one in action.params))
        return (table.table_id, match), _Record(value, entry, entity)


def _base_entries(config: SwitchConfig, program: Program) -> list[Forwarding]:
    """Return the entries that exist without any job."""
    mac = config.address.mac
    entries: list[Forwarding] = [program.flood_group(config.ports), program.flood_unknown()] if config.ports else []
    for ip in dict.fromkeys([config.address.ip, *config.more_addresses]):
        entries += [program.own_address(ip, mac), program.own_source(ip)]
    entries += [program.host(host, port) for host, port in config.hosts.items()]
    entries += [program.route(route.destination, route.port, mac, route.next_hop_mac) for route in config.routes]
    if config.routes:
        entries.append(program.router_mac(mac))
    return entries
