# SPDX-License-Identifier: Apache-2.0
"""The running jobs in etcd: a key for each, and one for the rest. Only the holder of the lease writes them."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p4reduce_controller.etcd import rpc_pb2 as rpc
from p4reduce_controller.etcd.client import CALL_TIMEOUT, Etcd, EtcdError
from p4reduce_controller.etcd.lease import Lease
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.store.state import StateError, check_version, rest_of, state_from_json, state_to_json
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.switches.aggregator import Children
from p4reduce_controller.switches.availability import Unavailable

_MOST_CHANGES = 100  # per transaction; etcd accepts 128 by default
_MOST_BYTES = 1 << 20  # likewise; etcd accepts 1.5 MiB
_PLAIN_BYTES = 1 << 18  # longer values are compressed: those of jobs with about 1,000 ranks and more
_COMPRESSED = b"zlib "  # what a compressed value begins with
_UNKNOWN: dict[str, Any] = {}  # stands for a key's value while it is unknown whether a write of it was carried out
_ORDER = "order"  # the key that puts writes in order: each changes it, if it is as the write before left it


class EtcdState:
    """A `store.Store` that can be used for as long as the controller holds the lease.

    A member that was stopped may carry out a write late, although another member has done it meanwhile. So every write
    is conditional on the write before it, and has no effect once another write has followed that one.

    A standby calls `fetch` and `check` when it learns of a leader, to fail early. The leader calls `fetch`, then `peek`
    for the switches of the site, then `load` for the jobs, and then `keep` for each change.
    """

    shared = True

    def __init__(self, etcd: Etcd, lease: Lease, prefix: str, name: str) -> None:
        """Prepare the state. `prefix`: of all its keys, with a / at the end. `name`: of the store, in errors."""
        self._etcd = etcd
        self._lease = lease
        self._prefix = prefix
        self._name = name
        self._setup: Setup
        self.use: dict[str, Any] = {}
        self.queue: list[Any] = []
        self.fabric: dict[str, Any] = {}
        self._stored: dict[str, dict[str, Any]] = {}  # the values in etcd by key, without the prefix
        self._broken = ""
        self._last_write = 0  # the revision of `_ORDER`, which the next write expects; 0 if it does not exist
        self._writes = 0
        self._writing = asyncio.Lock()

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        return self._lease.maybe_lost_leadership

    async def is_ours(self) -> bool:
        return await self._lease.is_ours()

    async def fetch(self) -> None:
        """Read the stored state for `load`. Raises EtcdError."""
        found = await self._etcd.range(self._prefix, _after(self._prefix))
        for one in found.kvs:
            key = one.key.decode(errors="replace").removeprefix(self._prefix)
            if key == _ORDER:
                self._last_write = one.mod_revision
                continue
            try:
                value = _decoded(one.value)
                if not isinstance(value, dict):
                    raise ValueError("no object")
                self._stored[key] = value
            except (ValueError, RecursionError, zlib.error) as error:
                self._broken = f"{key}: {error}"

    def check(self) -> None:
        """Check after `fetch`, as a standby, that this controller could use the state. Raises StateError."""
        try:
            if self._broken:
                raise StateError(self._broken)
            if self._stored:
                check_version(self._stored.get("site", {}))
        except StateError as error:
            raise self.refusal(str(error)) from None

    def peek(self) -> None:
        self.check()
        try:
            _, _, self.fabric = rest_of(self._stored.get("site", {}))
        except StateError as error:
            raise self.refusal(str(error)) from None

    def load(self, setup: Setup, now: float) -> tuple[list[Job], Children]:
        self._setup = setup
        self.check()
        try:
            if not self._stored:
                return [], {}
            jobs = [one for key, one in sorted(self._stored.items()) if key.startswith("jobs/")]
            kept = {**self._stored.get("site", {}), "jobs": jobs}
            found = state_from_json(kept, self._setup, now)
            self.use, self.queue, self.fabric = rest_of(kept)
            return found
        except (StateError, ValueError, RecursionError) as error:
            raise self.refusal(str(error)) from None

    def refusal(self, why: str) -> StateError:
        return StateError(
            f"{self._name}: {why}; delete the keys below {self._prefix} to start without its jobs, which then end"
        )

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Children, now: float) -> None:
        try:
            await asyncio.wait_for(self._keep(jobs, children, now), 2 * CALL_TIMEOUT)
        except asyncio.TimeoutError:
            raise StateError(f"{self._name}: nothing can be kept there for {2 * CALL_TIMEOUT:g} s") from None
        except EtcdError as error:
            raise StateError(f"{self._name}: {error}") from None

    async def _keep(self, jobs: Callable[[], Iterable[Job]], children: Children, now: float) -> None:
        async with self._writing:  # so etcd gets one transaction after the other
            root = state_to_json(jobs(), children, self._setup, now)
            wanted = {f"jobs/{job['number']}": job for job in root.pop("jobs")}
            wanted["site"] = {**root, "use": self.use, "queue": self.queue, "fabric": self.fabric}
            changes = [key for key in [*wanted, *self._stored] if not _same(wanted.get(key), self._stored.get(key))]
            # `site` comes first: it has the version, without which no jobs can be read if this controller dies between
            # two transactions.
            changes = sorted(dict.fromkeys(changes), key=lambda key: key != "site")
            for batch in _batches({key: wanted.get(key) for key in changes}):
                await self._write(batch)

    async def _write(self, changes: Sequence[_Change]) -> None:
        if self._lease.lost.is_set():
            raise StateError(f"{self._name}: this controller does not serve any more: {self._lease.why}")
        operations = [one.operation(self._prefix) for one in changes]
        self._stored |= {one.key: _UNKNOWN for one in changes}
        self._writes += 1
        await self._transact(operations, json.dumps({"term": self._lease.term, "write": self._writes}).encode())
        for one in changes:
            if one.value is None:
                del self._stored[one.key]
            else:
                self._stored[one.key] = one.value

    async def _transact(self, operations: list[rpc.RequestOp], write_id: bytes) -> None:
        order = f"{self._prefix}{_ORDER}".encode()
        done = rpc.RequestOp(request_put=rpc.PutRequest(key=order, value=write_id))
        look = [rpc.RequestOp(request_range=rpc.RangeRequest(key=key)) for key in (self._lease.key, order)]
        while True:
            follows = rpc.Compare(target=rpc.Compare.MOD, key=order, mod_revision=self._last_write)
            compare = [self._lease.fence, follows]
            request = rpc.TxnRequest(compare=compare, success=[*operations, done], failure=look)
            reply = await self._etcd.transact(request)
            if reply.succeeded:
                self._last_write = reply.header.revision
                return
            ours, last = (list(one.response_range.kvs) for one in reply.responses)
            if not ours or ours[0].create_revision != self._lease.term:
                self._lease.lose("another controller holds it, or it has expired")
                raise StateError(f"{self._name}: this controller does not serve any more: {self._lease.why}")
            self._last_write = last[0].mod_revision if last else 0
            if last and last[0].value == write_id:
                return  # the first of several attempts has succeeded, and its answer was lost
            # The lease is still ours, so an earlier write of this controller was carried out late, and its outcome was
            # unknown. This write may overwrite it: `_keep` writes all keys anew that are `_UNKNOWN` since then.


@dataclass(frozen=True)
class _Change:
    """A key's new value, and its bytes; or None and b"" if the key is to be deleted."""

    key: str
    value: dict[str, Any] | None
    encoded: bytes

    def operation(self, prefix: str) -> rpc.RequestOp:
        key = f"{prefix}{self.key}".encode()
        if self.value is None:
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=self.encoded))


def _encoded(value: Mapping[str, Any]) -> bytes:
    plain = json.dumps(value).encode()
    return plain if len(plain) <= _PLAIN_BYTES else _COMPRESSED + zlib.compress(plain)


def _decoded(text: bytes) -> Any:
    plain = text.removeprefix(_COMPRESSED)
    return json.loads(plain if plain == text else zlib.decompress(plain))


def _batches(changes: Mapping[str, dict[str, Any] | None]) -> Iterator[list[_Change]]:
    """Yield the changes in order, as many as a transaction takes."""
    batch: list[_Change] = []
    length = 0
    for key, value in changes.items():
        change = _Change(key, value, b"" if value is None else _encoded(value))
        if batch and (len(batch) == _MOST_CHANGES or length + len(change.encoded) > _MOST_BYTES):
            yield batch
            batch, length = [], 0
        batch.append(change)
        length += len(change.encoded)
    if batch:
        yield batch


def _same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Return whether both are equal apart from `started`, which is computed anew each time."""
    if not one or not other:  # one is None, for no such key, or `_UNKNOWN`, which nothing equals
        return one is other
    return {**one, "started": 0} == {**other, "started": 0}


def _after(prefix: str) -> str:
    """Return the first key after all keys with this prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
