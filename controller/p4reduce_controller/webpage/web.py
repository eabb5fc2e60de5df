# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the controller, which is read-only: the status page, metrics, and health checks."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Protocol

import grpc
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from p4reduce.control import diagnostics
from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.base.listening import ListenError, is_loopback
from p4reduce_controller.observability.watch import Watch, titled
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.tenants.access import Caller, seen_by
from p4reduce_controller.tenants.gate import Guard, Refused
from p4reduce_controller.webpage.names import Names
from p4reduce_controller.webpage.page_data import history_of, view_of

_FILES = ("page.js", "fabric.js", "charts.js", "words.js", "page.css", "icon.svg")
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_LARGEST_REQUEST = 1 << 10  # bytes of a body; no request needs one
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HandlerForCaller = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]


class Served(Protocol):
    """The controller whose health is served."""

    @property
    def failure(self) -> BaseException | None: ...

    @property
    def unavailable(self) -> Unavailable | None: ...

    @property
    def stands_by(self) -> bool: ...


@dataclass(eq=False, repr=False)
class Web:
    """The HTTP server.

    `tls`: for the page, and for the metrics if the settings say so. Metrics have an address of their own, without a
    token, because Prometheus often runs on the same host.
    `guard`: admits callers, and limits what they see.
    `page`, `metrics`: the addresses, once it serves.
    """

    settings: Settings
    tls: TlsFiles | None
    watch: Watch
    registry: CollectorRegistry
    served: Served
    guard: Guard
    page: str = ""
    metrics: str = ""
    _runners: list[web.AppRunner] = field(default_factory=list)

    async def start(self) -> None:
        """Start serving. Raise ListenError, or OSError if a certificate cannot be used."""
        config = self.settings
        if config.metrics:
            routes = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
            host, _ = _address("--metrics", config.metrics)
            # On other addresses, Prometheus may use any name, and browsers normally cannot reach them.
            rebinding = Names(host, config.page_names) if is_loopback(host) else None
            tls = self.tls if config.metrics_tls else None
            self.metrics = await self._serve("--metrics", config.metrics, _application(routes, rebinding), tls)
        if config.page:
            host, _ = _address("--page", config.page)
            if not (self.tls or config.insecure or is_loopback(host)):
                raise ListenError(
                    f"--page {config.page} is open to other hosts without TLS; give --tls-cert and --tls-key, or "
                    "--insecure if the network is trusted"
                )
            application = self._page(None if self.guard.asks else Names(host, config.page_names))
            self.page = await self._serve("--page", config.page, application, self.tls)

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(self, option: str, listen: str, application: web.Application, tls: TlsFiles | None) -> str:
        """Serve the application, and return its address, since the given port may be 0."""
        host, port = _address(option, listen)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=30.0, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        context = _ServerContext.of(tls) if tls is not None else None
        try:
            await _site_of(runner, diagnostics.plain_host(host), port, context).start()
        except OSError as error:
            why = diagnostics.cannot_listen(listen) or diagnostics.of_os(error)
            raise ListenError(f"cannot serve on {option} {listen}: {why}") from None
        return f"{host}:{runner.addresses[0][1]}"

    def _page(self, names: Names | None) -> web.Application:
        files = {"/": _file("index.html"), **{f"/{name}": _file(name) for name in _FILES}}
        protected = {"/metrics": self._metrics_of_all, "/api/status": self._status, "/api/history": self._history}
        public = {"/healthz": self._healthz, "/readyz": self._readyz, **files}
        checked = {path: self._with_token(handler) for path, handler in protected.items()}
        return _application({**checked, **public}, names)

    def _with_token(self, handler: _HandlerForCaller) -> _Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            peer = _peer(request)
            try:
                return await handler(request, self.guard.admit(request.headers.get("Authorization", ""), peer))
            except Refused as error:
                await self.guard.refuse(f"page {request.path}", error, peer)
                status = _STATUS[error.code]
                headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                return web.json_response({"error": str(error)}, status=status, headers=headers)

        return checked

    # Handlers.

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        text = await asyncio.to_thread(encode, self.registry)
        return web.Response(body=text, headers={"Content-Type": kind})

    async def _metrics_of_all(self, request: web.Request, caller: Caller) -> web.Response:
        if not caller.sees_all:
            why = "metrics are for callers who may see the jobs of all tenants"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, why, caller)
        return await self._metrics(request)

    async def _healthz(self, _: web.Request) -> web.Response:
        failure = self.served.failure
        return _health(Unavailable(f"the service has failed: {type(failure).__name__}") if failure else None)

    async def _readyz(self, _: web.Request) -> web.Response:
        return _health(self.served.unavailable)

    async def _status(self, _: web.Request, caller: Caller) -> web.Response:
        view = self.watch.last_view
        if view is None:
            body = {"error": "there is no status yet"}
            if self.served.stands_by:
                body = {"error": str(self.served.unavailable), "standby": "yes"}
            return web.json_response(body, status=503)
        view = replace(view, status=seen_by(caller, view.status))
        return web.json_response(view_of(view, self.served.unavailable))

    async def _history(self, _: web.Request, caller: Caller) -> web.Response:
        view = self.watch.last_view
        seen = {titled(job) for job in seen_by(caller, view.status).jobs} if view is not None else set()
        return web.json_response(history_of(self.watch.history, seen.__contains__))


def _application(routes: Mapping[str, _Handler], names: Names | None) -> web.Application:
    """Return an application of these routes. `names`: accepted host names, if any web site could otherwise read it."""
    application = web.Application(
        client_max_size=_LARGEST_REQUEST, middlewares=[names.middleware] if names is not None else []
    )

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    application.on_response_prepare.append(add_headers)
    for path, handler in routes.items():
        application.router.add_get(path, handler)
    return application


def _file(name: str) -> _Handler:
    body = (resources.files("p4reduce_controller.webpage") / "static" / name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return handler


def _peer(request: web.Request) -> str:
    host, port = request.transport.get_extra_info("peername")[:2] if request.transport is not None else ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _health(unavailable: Unavailable | None) -> web.Response:
    body = {"ok": unavailable is None, "problem": str(unavailable or "")}
    return web.json_response(body, status=503 if unavailable else 200)


def _address(option: str, listen: str) -> tuple[str, int]:
    try:
        diagnostics.check_address(option, listen, "127.0.0.1:9090", least=0, of_grpc=False)
    except ValueError as error:
        raise ListenError(str(error)) from None
    host, _, port = diagnostics.canonical_address(listen).rpartition(":")
    return host, int(port)


def _site_of(runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None) -> web.BaseSite:
    """Return the site at this address. At `::`, it serves IPv4 as well, as gRPC does. Raises OSError."""
    if host == "::" and socket.has_dualstack_ipv6():
        sock = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        return web.SockSite(runner, sock, ssl_context=context)
    return web.TCPSite(runner, host, port, ssl_context=context)


class _ServerContext(ssl.SSLContext):
    """The context of an asyncio server that reads the certificates anew for each connection."""

    _files: TlsFiles

    @classmethod
    def of(cls, files: TlsFiles) -> _ServerContext:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._files = files
        return made

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._files.current().context.wrap_bio(*arguments, **options)
