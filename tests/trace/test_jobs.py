# SPDX-License-Identifier: Apache-2.0
"""What the controller calls those whose packets are recorded."""

from __future__ import annotations

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import P4ReduceError
from p4reduce.trace.jobs import _called, _names, asked, ports


def member(rank: int, leader: int | None, *ports: int) -> pb.Member:
    places = [pb.Place(heard=True, ip="10.0.0.1", udp_port=port) for port in ports]
    return pb.Member(rank=rank, leader=leader, places=[*places, pb.Place(heard=False)])


def test_a_stream_has_the_names_of_all_ranks_that_share_it() -> None:
    job = pb.Job(name="mine", members=[member(0, 0, 1000, 1001), member(1, 0, 1002), member(2, None, 1003)])
    assert _names(job) == {
        ("10.0.0.1", 1000): "ranks 0, 1",
        ("10.0.0.1", 1001): "ranks 0, 1",
        ("10.0.0.1", 1003): "rank 2",
    }


def test_a_job_is_called_as_commands_call_it() -> None:
    assert _called(pb.Job(name="mine")) == "mine"
    assert _called(pb.Job(name="mine", tenant="theirs")) == "theirs/mine"


def test_a_controller_that_is_not_there_is_named() -> None:
    with pytest.raises(P4ReduceError, match=r"127\.0\.0\.1:1"):
        asked("127.0.0.1:1", None, None)


def test_ports_are_those_of_all_switches() -> None:
    status = pb.StatusReply(switches=[pb.Switch(udp_port=port) for port in (31315, 31314, 31315)])
    assert ports(status) == (31314, 31315)
