# SPDX-License-Identifier: Apache-2.0
"""By which names a browser may call what it serves without a token.

A web site can have its own name point to another host's address, such as 127.0.0.1, and then read what is served there
as if it were its own (DNS rebinding). The browser says the site's name all the same, in the header Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


class Names:
    def __init__(self, host: str, more: Collection[str] = ()) -> None:
        """`host`: where it listens. Addresses are names that no web site has."""
        self._known = {name.lower().rstrip(".") for name in (host, "localhost", *more)}

    def knows(self, host: str) -> bool:
        """`host`: as the header says, with a port or without one."""
        name, colon, port = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, port = host, "0"
        if not (port.isascii() and port.isdigit()):
            return False
        return name.lower().rstrip(".") in self._known or _is_address(name)

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            said = request.headers.getall("Host", [""])
            if len(said) == 1 and self.knows(said[0]):
                return await handler(request)
            why = (
                "this page has no token, so browsers may open it only by its address, by localhost, or by a name given "
                "with --page-name"
            )
            return web.json_response({"error": why}, status=421)

        return check


def _is_address(name: str) -> bool:
    bracketed = name.startswith("[") and name.endswith("]")
    try:
        return (ipaddress.ip_address(name[1:-1] if bracketed else name).version == 6) == bracketed
    except ValueError:
        return False
