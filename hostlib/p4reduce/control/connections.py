# SPDX-License-Identifier: Apache-2.0
"""The streams of one rank to its controllers, and the gRPC channels that carry them.

One stream is `serving`: it leads to the controller that has admitted the rank. The others are candidates: each waits at
another controller, or at the same one after its stream broke, with a Rejoin. A controller answers a Rejoin when it
serves, so the first candidate that is answered becomes the serving stream.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.certificates import TlsFiles
from p4reduce.control.channel import Tls, open_channel
from p4reduce.control.stream import ControllerStream, OnEnd, OnMessage

_END_TIMEOUT = 30.0  # seconds; a stream's thread ends at once, unless a callback of the session is busy


class Connections:
    """The streams and channels of a session, which guards them with its lock.

    Call the methods under that lock, except `cancel_outdated`, `end_streams` and `close`, which take it themselves.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str | None,
        tls: Tls | None,
        lease: float,
        lock: threading.Condition,
        on_message: OnMessage,
        on_end: OnEnd,
    ) -> None:
        """Begin without streams.

        lock: the session's lock. on_message, on_end: called from a stream's thread, without the lock.
        """
        self.addresses = addresses
        self.serving: ControllerStream | None = None
        self.candidates: dict[str, ControllerStream] = {}  # by address
        self._token, self._tls, self._lease = token, tls, lease
        self._lock = lock
        self._on_message, self._on_end = on_message, on_end
        self._tls_files: TlsFiles | None = None  # read when the first stream is opened
        self._channels: dict[str, tuple[grpc.Channel, int]] = {}  # by address, with the version of the certificates

    @property
    def address(self) -> str:
        """The address of the serving controller if it is known, else all addresses."""
        return self.serving.address if self.serving is not None else ",".join(self.addresses)

    def serve(self, stream: ControllerStream) -> None:
        """Open the stream as the serving one."""
        self.serving = stream
        self._open(stream, wait_for_listener=False)

    def add_candidate(self, address: str, rejoin: pb.Rejoin) -> None:
        """Open a stream that waits until a controller listens at `address`."""
        stream = self.candidates[address] = ControllerStream(address, pb.ClientMessage(rejoin=rejoin))
        self._open(stream, wait_for_listener=True)

    def promote(self, candidate: ControllerStream) -> ControllerStream | None:
        """Make the candidate the serving stream. Returns the one before, which the caller cancels."""
        before, self.serving = self.serving, candidate
        self.candidates.pop(candidate.address, None)
        return before

    def send(self, message: pb.ClientMessage) -> None:
        """Send a message to the serving controller, if there is one."""
        if self.serving is not None:
            self.serving.send(message)

    @property
    def unsent(self) -> int:
        """Messages to the serving controller that gRPC has not taken yet."""
        return self.serving.unsent if self.serving is not None else 0

    def cancel_outdated(self) -> None:
        """Cancel candidates whose certificates have changed since they were opened. Takes the lock itself."""
        if self._tls_files is None:
            return
        version = self._tls_files.current().version
        with self._lock:
            versions = {address: of for address, (_, of) in self._channels.items()}
            outdated = [one for address, one in self.candidates.items() if versions.get(address, version) != version]
        for stream in outdated:
            stream.cancel()

    def end_streams(self) -> None:
        """End all streams and channels, and wait until the streams' threads have ended. Takes the lock itself."""
        with self._lock:
            streams = [*([self.serving] if self.serving else []), *self.candidates.values()]
            channels = [channel for channel, _ in self._channels.values()]
            self.serving = None
            self.candidates, self._channels = {}, {}
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.wait(_END_TIMEOUT)
        for channel in channels:
            channel.close()

    def close(self) -> None:
        """End all streams for good. Takes the lock itself."""
        self.end_streams()
        # The callbacks are methods of the session, which refers to this object.
        self._on_message = lambda *_: None
        self._on_end = lambda *_: None

    def _open(self, stream: ControllerStream, *, wait_for_listener: bool) -> None:
        channel = self._channel(stream.address)
        stream.open(channel, self._token, self._on_message, self._on_end, wait_for_listener=wait_for_listener)

    def _channel(self, address: str) -> grpc.Channel:
        """Return a channel with the latest certificates. No stream of an older channel to this address may be open."""
        if self._tls is not None and self._tls_files is None:
            self._tls_files = self._tls.files()
        pem = self._tls_files.current() if self._tls_files is not None else None
        version = pem.version if pem is not None else 0
        channel, channel_version = self._channels.get(address, (None, 0))
        if channel is not None and channel_version == version:
            return channel
        if channel is not None:
            channel.close()
        channel = open_channel(address, self._tls, self._lease, pem)
        self._channels[address] = channel, version
        return channel
