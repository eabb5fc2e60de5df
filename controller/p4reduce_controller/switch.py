# SPDX-License-Identifier: Apache-2.0
"""The aggregator behind P4Runtime. It cannot tell one target from another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from itertools import count
from typing import Any

import finsy as fy
from finsy.proto import p4r

from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, NOBODY, Op
from p4reduce_controller.aggregator import (
    Direction,
    HalfState,
    Heard,
    Layout,
    Listener,
    Placement,
    Superseded,
    SwitchError,
    SwitchUnavailable,
)
from p4reduce_controller.frames import OUTCOMES, Aggregation, Endpoint, build, hello_nonce, parse
from p4reduce_controller.link import Entry, Link
from p4reduce_controller.program import Program
from p4reduce_controller.resets import ResetBatch

log = logging.getLogger(__name__)

RESET_TIMEOUT = 5.0
QUERY_TIMEOUT = 2.0
QUERY_RETRY = 0.25
CLOSE_TIMEOUT = 3.0
ABORT_COPIES = 3  # each may be lost on its way; ranks also hear it from the service
ABORT_SPACING = 0.02
BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Route:
    destination: IPv4Network
    port: int
    next_hop_mac: str


@dataclass(frozen=True)
class SwitchConfig:
    """Where the switch is, who it is on the network, and what it forwards besides.

    `address` is where workers send to; `more_addresses` are answered for ARP and ping too. All have `address.mac`,
    which is the routers' MAC as well. `ports` are flooded.
    """

    target: str
    address: Endpoint
    device_id: int = 1
    more_addresses: Sequence[str] = ()
    ports: Sequence[int] = (1,)
    hosts: Mapping[str, int] = field(default_factory=dict)
    routes: Sequence[Route] = ()


@dataclass(frozen=True)
class _Wanted:
    """An entry that the switch shall have; `owner` is the job that it belongs to, if any."""

    value: object
    entity: p4r.Entity
    owner: int | None


class P4RuntimeSwitch:
    """Implements `aggregator.Aggregator`.

    What the switch shall hold is kept here too. On every connection the two are compared: what is not ours goes, what
    is missing is put back, and jobs that miss something are reported lost, since their slots are gone as well.
    """

    def __init__(self, config: SwitchConfig, program: Program) -> None:
        self._config = config
        self._program = program
        self._wanted: dict[object, _Wanted] = {}
        self._rates: dict[tuple[int, Direction], float] = {}
        self._link: Link | None = None
        self._connected = asyncio.Event()
        self._writing = asyncio.Lock()
        self._problem = "not connected yet"
        self._listener: Listener | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._resets: dict[tuple[int, int], Callable[[Aggregation], None]] = {}
        self._queries: dict[int, asyncio.Future[HalfState]] = {}
        self._query_ids = count(1)
        self._static: set[object] = set()
        for entry in self._base_entries():
            self._want(entry, None)
        self._static = set(self._wanted)

    @property
    def layout(self) -> Layout:
        return self._program.layout

    @property
    def address(self) -> Endpoint:
        return self._config.address

    @property
    def target(self) -> str:
        return self._config.target

    @property
    def problem(self) -> str:
        return "" if self._link else self._problem

    @property
    def loss_rates(self) -> Mapping[tuple[int, Direction], float]:
        return dict(self._rates)

    # The connection.

    async def start(self, listener: Listener, timeout: float) -> None:
        self._listener = listener
        self._keeper = asyncio.create_task(self._keep_connected(), name="switch")
        try:
            await asyncio.wait_for(self._connected.wait(), timeout)
        except asyncio.TimeoutError:
            await self._stop_keeper()
            raise SwitchUnavailable(f"no switch after {timeout:g} s: {self._problem}") from None

    async def close(self, *, keep: bool = False) -> None:
        if self._link is not None and not keep:
            with contextlib.suppress(SwitchError, asyncio.TimeoutError):
                await asyncio.wait_for(self._take_everything_off(), CLOSE_TIMEOUT)
        await self._stop_keeper()

    async def wait_connected(self) -> None:
        await self._connected.wait()

    async def _stop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            # A controller that starts later has a higher id, and takes over. Ours rises too, for the switch may not
            # have noticed yet that our last connection is gone.
            link = Link(self.target, self._config.device_id, time.time_ns(), self._program.schema, self._on_packet)
            try:
                installed = await link.open()
                lost = await self._reconcile(link)
                log.info("connected to the switch at %s%s", self.target, ", pipeline installed" if installed else "")
                failures = 0
                self._link = link
                self._connected.set()
                self._tell(partial(_report_connected, lost))
                await link.run()
            except Superseded as error:
                self._problem = str(error)
                self._disconnected()
                self._tell(lambda listener: listener.superseded(self._problem))
                return
            except SwitchError as error:
                self._problem = str(error)
                was_connected = self._disconnected()
                log.log(logging.WARNING if was_connected else logging.INFO, "%s", error)
                if was_connected:
                    self._tell(lambda listener: listener.disconnected(self._problem))
            finally:
                self._disconnected()
                await link.close()
            await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1

    def _disconnected(self) -> bool:
        """True when there was a connection."""
        had = self._link is not None
        self._link = None
        self._connected.clear()
        return had

    def _tell(self, what: Callable[[Listener], None]) -> None:
        if self._listener is not None:
            what(self._listener)

    def _linked(self) -> Link:
        if self._link is None:
            raise SwitchUnavailable(f"the switch at {self.target} is not connected: {self._problem}")
        return self._link

    # What the switch holds.

    def _base_entries(self) -> list[Entry]:
        config, program = self._config, self._program
        mac = config.address.mac
        entries: list[Entry] = [program.flood_group(config.ports), program.flood_unknown()] if config.ports else []
        entries += [program.own_address(ip, mac) for ip in dict.fromkeys([config.address.ip, *config.more_addresses])]
        entries += [program.host(host, port) for host, port in config.hosts.items()]
        entries += [program.route(route.destination, route.port, mac, route.next_hop_mac) for route in config.routes]
        if config.routes:
            entries.append(program.router_mac(mac))
        return entries

    def _want(self, entry: Entry, owner: int | None) -> p4r.Update | None:
        """The update that brings the switch there, or None when it is there."""
        key, value, entity = self._canonical(entry)
        had = self._wanted.get(key)
        self._wanted[key] = _Wanted(value, entity, owner)
        if had is None and not _is_default(entry):
            return p4r.Update(type=p4r.Update.INSERT, entity=entity)
        return None if had and had.value == value else p4r.Update(type=p4r.Update.MODIFY, entity=entity)

    async def _put(self, entries: Iterable[Entry], owner: int | None = None) -> None:
        """When it fails, some of the entries may be there, until `_drop` takes them off."""
        async with self._writing:
            link = self._linked()
            updates = [self._want(entry, owner) for entry in entries]
            await link.write([update for update in updates if update is not None])

    async def _drop(self, entries: Iterable[Entry]) -> None:
        """Those that the switch does not have are passed over. When it fails, it may be tried again."""
        async with self._writing:
            link = self._linked()
            keys = [key for key in (self._canonical(entry)[0] for entry in entries) if key in self._wanted]
            deletes = [p4r.Update(type=p4r.Update.DELETE, entity=self._wanted[key].entity) for key in keys]
            await link.write(deletes, missing_ok=True)
            for key in keys:
                del self._wanted[key]

    async def _try_to_put(self, entries: Sequence[Entry]) -> None:
        """Entries that one can do without: all or none. Raises the switch's refusal after taking them off again."""
        try:
            await self._put(entries)
        except SwitchUnavailable:
            raise
        except SwitchError:
            await self._drop(entries)
            raise

    async def _reconcile(self, link: Link) -> frozenset[int]:
        """Makes the switch hold what it shall. Returns the jobs whose entries were not all there."""
        async with self._writing:
            there: dict[object, tuple[object, p4r.Entity]] = {}
            async for table_entry in link.read(self._program.every_entry()):
                if not (table_entry.is_default_action or table_entry.is_const):
                    key, value, entity = self._canonical(table_entry)
                    there[key] = (value, entity)
            async for group in link.read([fy.P4MulticastGroupEntry()]):
                key, value, entity = self._canonical(group)
                there[key] = (value, entity)

            intact = {key for key, wanted in self._wanted.items() if key in there and there[key][0] == wanted.value}
            lost = {wanted.owner for key, wanted in self._wanted.items() if wanted.owner and key not in intact}
            for key in [key for key, wanted in self._wanted.items() if wanted.owner in lost and wanted.owner]:
                del self._wanted[key]

            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=entity)
                for key, (_, entity) in there.items()
                if key not in self._wanted
            ]
            for key, wanted in self._wanted.items():
                if key not in intact:
                    exists = key in there or wanted.entity.table_entry.is_default_action
                    kind = p4r.Update.MODIFY if exists else p4r.Update.INSERT
                    updates.append(p4r.Update(type=kind, entity=wanted.entity))
            await link.write(updates)
            return frozenset(owner for owner in lost if owner is not None)

    async def _take_everything_off(self) -> None:
        async with self._writing:
            link = self._linked()
            updates = [
                p4r.Update(type=p4r.Update.DELETE, entity=wanted.entity)
                for wanted in self._wanted.values()
                if not wanted.entity.table_entry.is_default_action
            ]
            self._wanted.clear()
            unknown = self._program.discard_unknown().encode(self._program.schema)
            await link.write([p4r.Update(type=p4r.Update.MODIFY, entity=unknown), *updates], missing_ok=True)

    def _canonical(self, entry: Entry) -> tuple[object, object, p4r.Entity]:
        """Identity and contents of an entry, comparable however it was written, and its message."""
        schema = self._program.schema
        entity = entry.encode(schema)
        if isinstance(entry, fy.P4MulticastGroupEntry):
            replicas = fy.P4MulticastGroupEntry.decode(entity, schema).replicas
            pairs = [(replica, 0) if isinstance(replica, int) else _pair(replica) for replica in replicas]
            return ("group", entry.multicast_group_id), frozenset(pairs), entity
        plain = fy.P4TableEntry.decode(entity, schema)
        match = frozenset((plain.match or {}).items())
        action = plain.action
        value = (action.name, frozenset(action.args.items())) if isinstance(action, fy.Action) else action
        return (plain.table_id, match), value, entity

    # Jobs.

    async def say_hello(self, port: int, to: Endpoint, worker: int, nonce: int) -> None:
        keys = (nonce & 0xFFFFFFFF,) + (NO_KEY,) * (self.layout.lanes - 1)
        packet = Aggregation(Op.HELLO, worker=worker, fingerprint=nonce >> 32, keys=keys)
        frame = build(packet, self.address, to)
        await self._linked().send_packet(frame, through_pipeline=0, padding=0, egress_port=port, multicast_group=0)

    def _entries_of(self, job: Placement) -> list[Entry]:
        program = self._program
        return [program.job_group(job), *program.deliveries(job), *program.uplinks(job), *program.admissions(job)]

    def _learned_from(self, job: Placement) -> list[Entry]:
        """Where its workers are, as hosts."""
        hosts = {worker.sender.mac: worker.port for worker in job.workers}
        learned = [self._program.host(mac, port) for mac, port in hosts.items()]
        return [entry for entry in learned if self._canonical(entry)[0] not in self._static]

    def expect(self, job: Placement) -> None:
        for entry in self._entries_of(job):
            self._want(entry, job.job)
        for entry in self._learned_from(job):
            self._want(entry, None)

    async def install(self, job: Placement) -> None:
        await self._put(self._entries_of(job), owner=job.job)
        try:
            await self._try_to_put(self._learned_from(job))
        except SwitchUnavailable:
            raise
        except SwitchError as error:  # frames to an unknown host are flooded, so this is no loss
            log.warning("%s", error)

    async def reset(self, job: Placement) -> None:
        batch = ResetBatch(job.job, job.generation, job.slots, job.first_seq, self.layout.lanes)
        news = asyncio.Event()

        def acknowledge(packet: Aggregation) -> None:
            if batch.acknowledged(packet):
                news.set()

        key = (job.job, job.generation)
        self._resets[key] = acknowledge
        clock = asyncio.get_running_loop().time
        deadline = clock() + RESET_TIMEOUT
        try:
            while not batch.done:
                now = clock()
                if now >= deadline:
                    missing, halves = len(batch.missing), 2 * job.slots.count
                    raise SwitchError(
                        f"the switch at {self.target} did not acknowledge {missing} of {halves} RESETs "
                        f"within {RESET_TIMEOUT:g} s"
                    )
                for packet in batch.to_send(now):
                    await self._send(packet)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), max(0.0, min(batch.next_time(), deadline) - clock()))
                news.clear()
        finally:
            del self._resets[key]

    async def fence(self, job: Placement) -> None:
        await self._drop(self._program.admissions(job))

    async def abort(self, job: Placement, worker: int | None, reason: int) -> None:
        keys = (reason,) + (0,) * (self.layout.lanes - 1)
        packet = Aggregation(
            Op.ABORT,
            job=job.job,
            generation=job.generation,
            worker=NOBODY if worker is None else worker,
            keys=keys,
        )
        for copy in range(ABORT_COPIES):
            if copy:
                await asyncio.sleep(ABORT_SPACING)
            await self._send(packet, group=job.group)

    async def forget(self, job: Placement) -> None:
        program = self._program
        await self._drop([*program.uplinks(job), *program.deliveries(job), program.job_group(job)])

    # Looking and testing.

    async def query(self, half: int) -> HalfState:
        if not 0 <= half < 2 * self.layout.slots:
            raise ValueError(f"half={half}: the switch has halves 0 to {2 * self.layout.slots - 1}")
        # The answer brings back job and generation as they were, so the generation tells answers apart.
        number = next(self._query_ids) % 2**16
        answer: asyncio.Future[HalfState] = asyncio.get_running_loop().create_future()
        self._queries[number] = answer
        # The sums come back in the room of the zeros: the switch cannot make a packet much longer.
        lanes, size = self.layout.lanes, self.layout.block_size
        every = (1 << lanes) - 1
        packet = Aggregation(
            Op.QUERY,
            generation=number,
            slot=half,
            active=every,
            present=every,
            keys=(NO_KEY,) * lanes,
            values=(0,) * (lanes * size),
        )
        try:
            for _ in range(round(QUERY_TIMEOUT / QUERY_RETRY)):
                await self._send(packet)
                done, _ = await asyncio.wait([answer], timeout=QUERY_RETRY)
                if done:
                    return answer.result()
            raise SwitchError(f"the switch at {self.target} did not answer a QUERY for {QUERY_TIMEOUT:g} s")
        finally:
            del self._queries[number]

    async def set_loss(self, port: int, direction: Direction, rate: float) -> None:
        entry = self._program.loss(port, direction, rate)
        if rate > 0:
            await self._try_to_put([entry])
            self._rates[port, direction] = rate
        else:
            await self._drop([entry])
            self._rates.pop((port, direction), None)

    async def outcomes(self) -> dict[str, int]:
        counts = [entry async for entry in self._linked().read([self._program.outcomes()])]
        return {OUTCOMES[entry.index or 0]: entry.packet_count for entry in counts}

    async def losses(self) -> dict[tuple[int, Direction], int]:
        result: dict[tuple[int, Direction], int] = {}
        directions: tuple[Direction, ...] = ("in", "out")
        for direction in directions:
            async for entry in self._linked().read([self._program.losses(direction)]):
                port = entry.index or 0
                if entry.packet_count or (port, direction) in self._rates:
                    result[port, direction] = entry.packet_count
        return result

    # Packets.

    async def _send(self, packet: Aggregation, group: int = 0) -> None:
        address = self.address
        frame = build(
            packet,
            source=Endpoint(address.mac, address.ip, AGGREGATION_PORT),
            destination=Endpoint(address.mac, address.ip, AGGREGATION_PORT),
        )
        await self._linked().send_packet(frame, through_pipeline=1, padding=0, egress_port=0, multicast_group=group)

    def _on_packet(self, frame: bytes, metadata: dict[str, Any]) -> None:
        parsed = parse(frame, self.layout.lanes)
        if parsed is None:
            return
        sender, packet = parsed
        if packet.op == Op.HELLO:
            heard = Heard(
                metadata["ingress_port"], sender, packet.job, packet.generation, packet.worker, hello_nonce(packet)
            )
            self._tell(lambda listener: listener.heard(heard))
        elif packet.op == Op.RESET and (packet.job, packet.generation) in self._resets:
            self._resets[packet.job, packet.generation](packet)
        elif packet.op == Op.QUERY and packet.generation in self._queries:
            answer = self._queries[packet.generation]
            if not answer.done():
                answer.set_result(self._half_state(packet, metadata["bitmap"]))

    def _half_state(self, packet: Aggregation, bitmap: int) -> HalfState:
        size = self.layout.block_size
        values = tuple(packet.values[at : at + size] for at in range(0, len(packet.values), size))
        return HalfState(packet.slot, packet.seq, bitmap, packet.fingerprint, packet.keys, values)


def _report_connected(lost: frozenset[int], listener: Listener) -> None:
    listener.connected(lost)


def _is_default(entry: Entry) -> bool:
    return isinstance(entry, fy.P4TableEntry) and entry.is_default_action


def _pair(replica: Any) -> tuple[int, int]:
    return (replica.port, replica.instance) if hasattr(replica, "port") else tuple(replica)
