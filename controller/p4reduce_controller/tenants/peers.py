# SPDX-License-Identifier: Apache-2.0
"""Lets in calls with the one token, if there is one, and no faster than the host may that they come from: where nobody
knows whose they are."""

from __future__ import annotations

import hmac
from typing import Any

import grpc

from p4reduce_controller.base.limits import Rates
from p4reduce_controller.tenants.access import ANYONE, Caller
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Group, Guard, Refused
from p4reduce_controller.tenants.pace import Pace, host_of


class Peers(Guard):
    by_peer = True

    def __init__(self, rates: Rates, pace: Pace, token: str | None = None, audit: Audit | None = None) -> None:
        super().__init__(audit or Audit(), pace)
        self.rates = rates
        self.asks = bool(token)
        self._token = token

    def caller(self, metadata: Any) -> Caller:  # noqa: ARG002
        """Nobody knows who calls."""
        return ANYONE

    def group_of(self, caller: Caller, peer: str) -> Group:  # noqa: ARG002
        host = host_of(peer)
        return Group(host, "", host, self.rates)

    def admit(self, given: str, peer: str, method: str = "Status") -> Caller:
        self.check_rate(self.group_of(ANYONE, peer), method)
        wanted = f"Bearer {self._token}".encode()
        if self._token and not hmac.compare_digest(given.encode(errors="replace"), wanted):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong" if given else "a token is needed")
        return ANYONE
