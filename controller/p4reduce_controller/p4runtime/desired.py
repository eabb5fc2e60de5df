# SPDX-License-Identifier: Apache-2.0
"""The desired state of a switch: entries and groups of its own and of jobs.

They are written when they change, and compared with the switch's when the connection is new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import finsy as fy
from finsy.proto import p4r

from p4reduce_controller.p4runtime.link import Entry, Link
from p4reduce_controller.p4runtime.program import Program
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import DIRECTIONS, Direction, Placement, SwitchError, SwitchUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Wanted:
    """An entry that the switch must have; `owner` is the job that it belongs to, if any."""

    value: object
    entity: p4r.Entity
    owner: int | None


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
        self._wanted: dict[object, _Wanted] = {}
        self._rates: dict[tuple[int, Direction], float] = {}
        for entry in _base_entries(config, program):
            self._want(entry, None)
        for port, direction in product(config.ports, DIRECTIONS) if config.drop_rate else ():
            self._want(program.loss(port, direction, config.drop_rate), None)
            self._rates[port, direction] = config.drop_rate
        self._base = frozenset(self._wanted)
        self._learned: dict[object, dict[int, Entry]] = {}  # for each host, the entry of each job

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

    async def _put_hosts(self, entries: Sequence[Entry]) -> None:
        try:
            await self._try_to_put(entries)
        except SwitchUnavailable:
            raise
        except SwitchError as error:  # frames to an unknown host are flooded, so nothing is lost
            log.warning("%s", error)

    def _learn(self, entry: Entry, job: int) -> bool:
        """Record that the job needs the entry. Return whether it is the only job that does."""
        jobs = self._learned.setdefault(self._canonical(entry)[0], {})
        jobs[job] = entry
        return jobs.keys() == {job}

    def _unlearn(self, entry: Entry, job: int) -> bool:
        """Record that the job no longer needs the entry. Return whether no job does."""
        key = self._canonical(entry)[0]
        jobs = self._learned.get(key, {})
        jobs.pop(job, None)
        if not jobs:
            self._learned.pop(key, None)
        return not jobs

    def _entries_of(self, job: Placement) -> list[Entry]:
        program = self._program
        return [program.job_group(job), *program.deliveries(job), *program.uplinks(job), *self._admissions(job)]

    def _admissions(self, job: Placement) -> list[Entry]:
        """Return the entries that admit the workers, and the parent, at each port of their groups."""
        most = max(map(len, self._config.lags), default=1)

        def at(port: int, turn: int) -> int:
            group = self._config.lag_of(port)
            return group[(group.index(port) + turn) % len(group)] if group else port

        entries: list[Entry] = []
        for turn in range(most):
            workers = tuple(replace(worker, port=at(worker.port, turn)) for worker in job.workers)
            parent = replace(job.parent, port=at(job.parent.port, turn)) if job.parent is not None else None
            entries += self._program.admissions(replace(job, workers=workers, parent=parent))
        return self._first_of_each_key(entries) if most > 1 else entries

    def _hosts_of(self, job: Placement) -> list[Entry]:
        """Return the entries for learned hosts. If switches share a MAC address, the first one's port counts."""
        learned = [self._program.host(mac, port) for mac, port in job.hosts]
        return [entry for entry in self._first_of_each_key(learned) if self._canonical(entry)[0] not in self._base]

    def _first_of_each_key(self, entries: Sequence[Entry]) -> list[Entry]:
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
        their slots' contents are gone as well.
        """
        async with self._writing:
            present = await self._read(link)
            intact = {key for key, wanted in self._wanted.items() if key in present and present[key][0] == wanted.value}
            lost = {wanted.owner for key, wanted in self._wanted.items() if wanted.owner and key not in intact}
            for key in [key for key, wanted in self._wanted.items() if wanted.owner in lost and wanted.owner]:
                del self._wanted[key]

            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=entity)
                for key, (_, entity) in present.items()
                if key not in self._wanted
            ]
            for key, wanted in self._wanted.items():
                if key not in intact:
                    exists = key in present or wanted.entity.table_entry.is_default_action
                    kind = p4r.Update.MODIFY if exists else p4r.Update.INSERT
                    updates.append(p4r.Update(type=kind, entity=wanted.entity))
            await link.write([*updates, *self._limits(self._config.hello_rate)])
            return frozenset(owner for owner in lost if owner is not None)

    async def take_everything_off(self) -> None:
        async with self._writing:
            link = self._link()
            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=wanted.entity)
                for wanted in self._wanted.values()
                if not wanted.entity.table_entry.is_default_action
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

    async def _read(self, link: Link) -> dict[object, tuple[object, p4r.Entity]]:
        """Return the value and the message of each entry that the switch has, by key."""
        present: dict[object, tuple[object, p4r.Entity]] = {}
        async for table_entry in link.read(self._program.every_entry()):
            if not (table_entry.is_default_action or table_entry.is_const):
                key, value, entity = self._canonical(table_entry)
                present[key] = (value, entity)
        async for group in link.read([fy.P4MulticastGroupEntry()]):
            key, value, entity = self._canonical(group)
            present[key] = (value, entity)
        return present

    # Parts of the state.

    def _want(self, entry: Entry, owner: int | None) -> p4r.Update | None:
        """Record the desired entry. Return the update that the switch needs for it; None if it needs none."""
        key, value, entity = self._canonical(entry)
        had = self._wanted.get(key)
        self._wanted[key] = _Wanted(value, entity, owner)
        if had is None and not (isinstance(entry, fy.P4TableEntry) and entry.is_default_action):
            return p4r.Update(type=p4r.Update.INSERT, entity=entity)
        return None if had and had.value == value else p4r.Update(type=p4r.Update.MODIFY, entity=entity)

    def _has(self, entry: Entry) -> bool:
        key, value, _ = self._canonical(entry)
        return key in self._wanted and self._wanted[key].value == value

    async def _put(self, entries: Iterable[Entry], owner: int | None = None) -> None:
        """Write entries. If that fails, the switch may have some of them, until `_drop` removes them."""
        async with self._writing:
            link = self._link()
            updates = [self._want(entry, owner) for entry in entries]
            await link.write([update for update in updates if update is not None])

    async def _drop(self, entries: Iterable[Entry]) -> None:
        """Delete those of the entries that the switch has. If that fails, it may be tried again."""
        async with self._writing:
            link = self._link()
            asked = dict.fromkeys(self._canonical(entry)[0] for entry in entries)
            keys = [key for key in asked if key in self._wanted]
            deletes = [p4r.Update(type=p4r.Update.DELETE, entity=self._wanted[key].entity) for key in keys]
            await link.write(deletes, missing_ok=True)
            for key in keys:
                del self._wanted[key]

    async def _try_to_put(self, entries: Sequence[Entry]) -> None:
        """Write optional entries: all or none. Raise the switch's refusal after deleting them again."""
        try:
            await self._put(entries)
        except SwitchUnavailable:
            raise
        except SwitchError:
            await self._drop(entries)
            raise

    def _canonical(self, entry: Entry) -> tuple[object, object, p4r.Entity]:
        """Return a key and a value that compare equal however the entry was written, and its message.

        The message is finsy's encoding even of entries that were read, so equal entries have equal bytes.
        """
        entity = entry.encode(self._program.schema)
        if isinstance(entry, fy.P4MulticastGroupEntry):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            replicas = frozenset(one.SerializeToString() for one in group.replicas)
            return ("group", group.multicast_group_id), replicas, entity
        table = entity.table_entry
        action = table.action.action
        match = frozenset(one.SerializeToString() for one in table.match)
        value = (action.action_id, frozenset((one.param_id, one.value) for one in action.params))
        return (table.table_id, match), value, entity


def _base_entries(config: SwitchConfig, program: Program) -> list[Entry]:
    """Return the entries that exist without any job."""
    mac = config.address.mac
    entries: list[Entry] = [program.flood_group(config.ports), program.flood_unknown()] if config.ports else []
    for ip in dict.fromkeys([config.address.ip, *config.more_addresses]):
        entries += [program.own_address(ip, mac), program.own_source(ip)]
    entries += [program.host(host, port) for host, port in config.hosts.items()]
    entries += [program.route(route.destination, route.port, mac, route.next_hop_mac) for route in config.routes]
    if config.routes:
        entries.append(program.router_mac(mac))
    return entries
