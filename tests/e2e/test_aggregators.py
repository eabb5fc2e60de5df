# SPDX-License-Identifier: Apache-2.0
"""Jobs whose slots are striped over several aggregators: every sum has the bits of the reference."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from p4reduce_bench.processes import network
from tests.support.cluster.calls import SHAPES, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Setting, Stack, added, over_udp
from tests.support.own_network import Namespace
from tests.support.waiting import wait_until

DEADLINE_S = 4.0


@pytest.fixture
def stack(stacks: Callable[[str], Stack]) -> Stack:
    return stacks("aggregators")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("slots", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_slots_are_dealt_as_far_as_they_go(stack: Stack, slots: int) -> None:
    """The number of slots may be no multiple of the number of aggregators, or less than it."""
    before = added(stack)
    finish(Setting(stack), SHAPES, "shapes", world_size=2, slots=slots)
    worked = [now - then for then, now in zip(before, added(stack), strict=True)]
    assert all(worked) if slots != 1 else worked[0] > 0 == sum(worked[1:]), worked


def test_more_slots_than_one_could_hold(stack: Stack) -> None:
    """A switch of this program has 512."""
    with stack.ranks([Call((200_000,), density=0.5)], job="large", world_size=2, slots=513) as ranks:
        ranks.end_well(120)
    more = 512 * len(stack.switches) + 1
    with stack.ranks([Call()], job="too large", world_size=1, slots=more) as ranks:
        last = ranks.wait_for_ends()[0]
    assert last["error"] == "JoinError"
    assert f"slots={more}, and the {len(stack.switches)} switches have {more - 1}" in last["message"]


@pytest.mark.parametrize(
    ("engine", "target"),
    [
        ("c", "native"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("python", "native"), ("c", "sim"), ("python", "sim"))
        ),
    ],
)
def test_a_killed_aggregator_is_named_by_every_rank(monkeypatch: pytest.MonkeyPatch, engine: str, target: str) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", engine)
    with over_udp("--keep-slots", target=target, aggregators=2) as stack:
        calls = [replace(call, timeout=DEADLINE_S) for call in REPEATED]
        with stack.ranks(calls, job="killed", world_size=2, repeat=True) as ranks:
            ranks.wait_for("done")
            stack.switches[1].process.kill()
            killed_at = time.monotonic()
            # The time limit is an operation's, and the operation under way at the kill may have just begun.
            ranks.wait_for("error", timeout=DEADLINE_S + 15)
            assert time.monotonic() - killed_at < DEADLINE_S + 12
            lasts = [events[-1] for events in ranks.events.values()]
            assert "CollectiveTimeout" in {last["error"] for last in lasts}
            for last in lasts:  # the other rank may have given up first
                what = "has not answered|is away"
                assert re.search(rf"the switch at {re.escape(stack.addresses[1])} ({what})", last["message"]), last
        # Jobs that begin do without it, once that is no break of a moment.
        wait_until(
            lambda: re.match(r"unreachable for ([3-9]|\d\d)", stack.status()["switches"][1]["problem"]),
            "the switch to be away",
        )
        finish(Setting(stack), [Call()], "next", world_size=1)
        first, second = stack.status()["switches"]
        assert (first["connected"], second["connected"]) == (True, False)
        assert first["slots_used"] == 0 or second["problem"]


@pytest.mark.root
@pytest.mark.parametrize(
    ("target", "transport"),
    [
        ("native", "raw"),
        pytest.param("sim", "raw", marks=pytest.mark.slow),
        pytest.param("native", "scapy", marks=pytest.mark.slow),
    ],
)
def test_frames_on_a_common_network(target: str, transport: str) -> None:
    """Ranks and switches behind one bridge: each frame is for the MAC of its aggregator."""
    if transport == "scapy":
        pytest.importorskip("scapy", reason="needs scapy")
    with contextlib.closing(Namespace()) as namespace:
        with namespace.entered():
            network.run("ip", "link", "add", "bridge", "type", "bridge")
            network.run("ip", "link", "set", "bridge", "up")
            for number in (1, 2):
                for end, name in ((f"worker{number - 1}", f"cable{number}"), (f"switch{number}", f"trunk{number}")):
                    network.cable(end, name)
                    network.run("ip", "link", "set", name, "master", "bridge")
                network.run("ip", "address", "add", f"10.0.0.{number}/24", "dev", f"worker{number - 1}")
        with Stack(target, ["1=eth:switch{}"], "10.0.0.25{}:31314", enter=namespace.entered, aggregators=2) as stack:
            finish(Setting(stack), SHAPES, "raw", world_size=2, transport=transport, interfaces="worker")
