# SPDX-License-Identifier: Apache-2.0
"""The lease in etcd that only one controller holds, and which makes it the leader.

Its key exists while it is renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from p4reduce_controller.etcd import rpc_pb2 as rpc
from p4reduce_controller.etcd.client import ATTEMPT_TIMEOUT, Etcd, EtcdError, EtcdUnavailable
from p4reduce_controller.switches.availability import Unavailable

log = logging.getLogger(__name__)

_RENEWALS = 4  # renewals per lifetime of the lease
_RETRY_INTERVAL = 0.2  # seconds between attempts to reach etcd


class Lease:
    """This controller's lease for one leadership.

    `term`: the revision that created the lease's key, which rises with each leader.
    `lost`: set once it is certain that the lease is lost. While etcd does not answer, the lease may have expired
    without that being certain; `maybe_lost_leadership` then says so.
    """

    def __init__(self, etcd: Etcd, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.term = 0
        self.lost = asyncio.Event()
        self.why = ""
        self._etcd = etcd
        self._key = key
        self._clock = clock
        self._id = 0
        self._seconds = 0.0
        self._valid_until = 0.0
        self._trouble = ""

    async def campaign(self, value: str, seconds: int) -> bool:
        """Campaign for the lease. Return whether this controller holds it now. Raises EtcdError.

        `value`: what others can read about the holder.
        """
        sent_at = self._clock()
        granted = await self._etcd.grant(seconds)
        if granted.error:
            raise EtcdError(f"etcd did not grant a lease of {seconds} s: {granted.error}")
        self._id, self._seconds = granted.ID, float(granted.TTL)
        vacant = rpc.Compare(target=rpc.Compare.CREATE, key=self._key.encode(), create_revision=0)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=self._key.encode(), value=value.encode(), lease=self._id))
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key.encode()))
        reply = await self._etcd.transact(rpc.TxnRequest(compare=[vacant], success=[put], failure=[look]))
        if reply.succeeded:
            self.term = reply.header.revision
        else:  # the first attempt may have succeeded, and its answer was lost
            found = reply.responses[0].response_range.kvs
            self.term = found[0].create_revision if found and found[0].lease == self._id else 0
        if not self.term:
            with contextlib.suppress(EtcdError):
                await self._etcd.revoke(self._id, timeout=ATTEMPT_TIMEOUT)
            return False
        self._valid_until = sent_at + self._seconds
        return True

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        """The reason why another controller may hold the lease by now."""
        if self.lost.is_set():
            return Unavailable(self.why)
        late = self._clock() - self._valid_until
        if late < 0:
            return None
        trouble = f": {self._trouble}" if self._trouble else ""
        return Unavailable(f"the lease in etcd has not been renewed for {late + self._seconds:.1f} s{trouble}")

    @property
    def fence(self) -> rpc.Compare:
        """The condition that the key is still this controller's.

        With it in a transaction, no former leader can write.
        """
        return rpc.Compare(target=rpc.Compare.CREATE, key=self._key.encode(), create_revision=self.term)

    @property
    def key(self) -> bytes:
        return self._key.encode()

    async def is_ours(self) -> bool:
        """Return whether the lease was still held when this was called. Wait until etcd answers.

        Renewals do not prove it: an etcd leader that was stopped may revoke a lease that its successor has renewed, and
        answer renewals meanwhile (etcd-io/etcd#15247).
        """
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key.encode()))
        while not self.lost.is_set():
            try:
                reply = await self._etcd.transact(rpc.TxnRequest(compare=[self.fence], success=[look]))
            except EtcdError as error:
                log.info("cannot find out whether this controller holds the lease in etcd: %s", error)
                await asyncio.sleep(_RETRY_INTERVAL)
                continue
            if not reply.succeeded:
                self.lose("another controller holds it, or it has expired")
            return reply.succeeded
        return False

    def lose(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    async def keep(self) -> None:
        """Renew the lease until it is lost."""
        interval = self._seconds / _RENEWALS
        while not self.lost.is_set():
            sent_at = self._clock()
            try:
                left = await self._etcd.keep_alive(self._id, timeout=interval)
            except EtcdUnavailable as error:
                self._trouble = str(error)
            except EtcdError as error:
                self._trouble = str(error)
                log.warning("cannot renew the lease in etcd: %s", error)
            else:
                if left <= 0:
                    self.lose("the lease in etcd ran out before it was renewed")
                    return
                self._valid_until, self._trouble = sent_at + left, ""
            await asyncio.sleep(max(0.0, min(interval, sent_at + interval - self._clock())))

    async def resign(self) -> None:
        """Revoke the lease, so that another controller need not wait until it expires."""
        if self.term and not self.lost.is_set():
            self.lose("this controller gave it back")
            try:
                await self._etcd.revoke(self._id, timeout=2 * ATTEMPT_TIMEOUT)
            except EtcdError as error:
                log.warning("cannot give back the lease in etcd, which will expire: %s", error)


async def holder(etcd: Etcd, key: str, timeout: float) -> tuple[str, int] | None:
    """Return what the holder says of itself, and its lease; None if there is no holder. Raises EtcdError."""
    found = (await etcd.range(key, timeout=timeout)).kvs
    return (found[0].value.decode(errors="replace"), found[0].lease) if found else None
