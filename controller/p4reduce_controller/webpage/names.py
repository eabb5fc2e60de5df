# SPDX-License-Identifier: Apache-2.0
"""The host names by which browsers may open pages that need no token.

A web site can let its own name point to another host's address, such as 127.0.0.1, and then read what that host serves
as if it were its own (DNS rebinding). But the browser sends the site's name in the header Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


class Names:
    """The accepted host names of one server."""

    def __init__(self, host: str, more: Collection[str] = ()) -> None:
        """Prepare the check. `host`: the address that the server listens on. Addresses are always accepted."""
        self._known = {name.lower().rstrip(".") for name in (host, "localhost", *more)}

    def knows(self, host: str) -> bool:
        """Return whether the name is accepted. `host`: the header's value, with or without a port."""
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
