# SPDX-License-Identifier: Apache-2.0
"""The web server of a running controller: its status page and its metrics."""

from __future__ import annotations

import http.client
from typing import Any

from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.tenants.gate import Peers
from p4reduce_controller.webpage.web import Web
from tests.support.controller.running import Running

TOKEN = "swordfish"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Site:
    """The status page and metrics of a controller.

    door: a check of clients that replaces the controller's.
    """

    def __init__(self, running: Running, door: Peers | None = None, tls: TlsFiles | None = None, **config: Any) -> None:
        self.running = running
        controller = running.controller
        self.watch = Watch(controller.status, controller.reports.ports)
        registry = controller.telemetry.registry
        registry.register(Metrics(lambda: self.watch.last_view))
        guard = door or controller.service.guard
        self.web = Web(Settings(**config), tls, self.watch, registry, controller, guard)

    def __enter__(self) -> Site:
        self.running.loop.run(self.web.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.running.loop.run(self.web.close())

    def look(self) -> None:
        status = self.running.loop.run(self.running.controller.status())
        self.running.loop.call(self.watch.look, status, 1000.0)

    def get(self, path: str, headers: dict[str, str] | None = None, at: str = "") -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(at or self.web.page, timeout=10)
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
