# SPDX-License-Identifier: Apache-2.0
"""The web pages of a standby controller: they say that it stands by, and which controller serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.observability.certificates import CertificateExpiry
from p4reduce_controller.observability.telemetry import serving as tell_serving
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.standby.standby import says
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.tenants.gate import Guard
from p4reduce_controller.webpage.web import Web


@dataclass(frozen=True)
class _StandsBy:
    """A `web.Served` of a controller that stands by."""

    other: Callable[[], str]
    failure: BaseException | None = None
    stands_by: bool = True

    @property
    def unavailable(self) -> Unavailable:
        return Unavailable(says(self.other()))


async def _nothing() -> pb.StatusReply:
    raise AssertionError


def standby_web(
    settings: Settings,
    serving: ServiceConfig,
    other: Callable[[], str],
    guard: Guard,
    store_tls: TlsFiles | None = None,
) -> Web | None:
    """Return the server, which is not started; None if the settings serve nothing over HTTP.

    `other`: returns the controller that serves, if it is known.
    `guard`: admits calls.
    `store_tls`: for connections to the store.
    """
    if not settings.metrics and not settings.page:
        return None
    registry = CollectorRegistry(auto_describe=False)
    tell_serving(registry, 0)
    registry.register(CertificateExpiry(serving.tls, settings.switch_tls(), store_tls))
    return Web(settings, serving.tls, Watch(_nothing, {}), registry, _StandsBy(other), guard)
