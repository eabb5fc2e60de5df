# SPDX-License-Identifier: Apache-2.0
"""A client of BF Runtime without a server, which notes what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.client import BfrtLost, Client, ReadRefused, UpdateError


class NotingClient(Client):
    """A client. `refuses` says what becomes of an update, and `answers` what the next reads return or raise."""

    def __init__(self) -> None:
        self.address = "fake:1"
        self.requests: list[list[pb.Update]] = []
        self.refuses: Callable[[pb.Update], UpdateError | None] = lambda _: None
        self.reads: list[list[pb.TableEntry]] = []
        self.answers: list[list[pb.TableEntry] | ReadRefused] = []

    def write(self, updates: Sequence[pb.Update], timeout_s: float | None = None) -> list[UpdateError | None]:  # noqa: ARG002
        if updates:
            self.requests.append(list(updates))
        return [self.refuses(update) for update in updates]

    def read(self, entries: Sequence[pb.TableEntry]) -> list[pb.TableEntry]:
        self.reads.append(list(entries))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, ReadRefused):
            raise answer
        return answer

    def lose(self, why: str) -> BfrtLost:
        return BfrtLost(why)
