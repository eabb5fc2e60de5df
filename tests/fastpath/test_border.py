# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that callers pass to the C library."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.fastpath.library import find, to_c
from p4reduce.protocol import Membership, Operation, Timing
from p4reduce.transport import Switch, open_transport, open_transports
from tests.support.c_library import whole_library
from tests.support.protocol.c_worker import Worker

RESIDUAL = (ctypes.c_float * 64)()
MEMBERSHIP = Membership(job=1, generation=1, rank=0, world_size=2, slots=1, lanes=1, block_size=64, first_seq=0)


@pytest.fixture
def worker() -> Iterator[Any]:
    handle = ctypes.c_void_p(whole_library().p4reduce_worker_new(to_c(MEMBERSHIP), None, None))
    yield handle
    whole_library().p4reduce_worker_free(handle)


def refusal(call: Callable[..., int | None], *arguments: Any) -> str:
    """Make an invalid call, and return the message with which it is refused."""
    error = c.Error.make()
    refused = call(*arguments, error)
    assert refused in (0, None, c.INVALID)
    assert error.status == c.INVALID
    return str(error.message.decode())


def test_a_shorter_structure_is_an_older_callers(worker: Any) -> None:
    class Older(ctypes.Structure):
        _fields_ = c.Request._fields_[:4]

    data = np.zeros(64, np.float32)
    older = Older(size=ctypes.sizeof(Older), type=1, data=data.ctypes.data, count=64)
    request = ctypes.cast(ctypes.byref(older), ctypes.POINTER(c.Request))
    assert whole_library().p4reduce_worker_submit(worker, request, 0.0, None) == c.OK


def test_a_longer_structure_is_a_newer_callers(worker: Any) -> None:
    class Newer(ctypes.Structure):
        _fields_ = [*c.Request._fields_, ("new", ctypes.c_uint64)]

    data = np.zeros(64, np.float32)
    for new, status in ((0, c.OK), (1, c.INVALID)):
        newer = Newer(size=ctypes.sizeof(Newer), type=1, data=data.ctypes.data, count=64, new=new)
        request = ctypes.cast(ctypes.byref(newer), ctypes.POINTER(c.Request))
        assert whole_library().p4reduce_worker_submit(worker, request, 0.0, None) == status


def test_a_shorter_error_is_filled_as_far_as_it_goes(worker: Any) -> None:
    class Short(ctypes.Structure):
        _fields_ = [*c.Error._fields_[:4], ("message", ctypes.c_char * 8), ("after", ctypes.c_uint64)]

    short = Short(size=Short.message.offset + 8, after=7)
    request = c.Request.make(type=9)
    pointer = ctypes.cast(ctypes.byref(short), ctypes.POINTER(c.Error))
    assert whole_library().p4reduce_worker_submit(worker, request, 0.0, pointer) == c.INVALID
    assert (short.status, short.message, short.after) == (c.INVALID, b"type is", 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": 0}, r"type is 0: supported are float32 \(1\), int32 \(2\), float16 \(3\) and bfloat16 \(4\)"),
        ({"type": 5}, "type is 5: supported are"),
        ({"data": 2}, "data is at 0x2: it must be a multiple of 4"),
        ({"type": 4, "data": 1}, "data is at 0x1: it must be a multiple of 2"),
        ({"type": 2, "wire": 1}, r"wire is 1: supported are int32 \(0\), and of floats int16 \(1\) and int8 \(2\)"),
        ({"type": 3, "residual": RESIDUAL}, "residual is at .*: it must be a multiple of 4, and of float32 data"),
        ({"data": None}, "data is at"),
        ({"type": 2, "divisor": 2.0}, "divisor is 2: int32 sums are not divided"),
        ({"divisor": math.nan}, "divisor is nan: it must be a number"),
        ({"zeros": 3}, r"zeros is 3: supported are skipped \(0\), first \(1\) and sent \(2\)"),
        ({"timeout": -1.0}, "timeout is -1: it must be 0 or more seconds"),
        ({"timeout": math.nan}, "timeout is -?nan"),
        ({"dtype": b"x" * 32}, "too long: accepted are up to 31 characters"),
        ({"size": 0}, "request: this version of the library does not understand this structure"),
        (
            {"count": (2**24 + 1) * 64},
            "tensor has 16777217 blocks, 16777217 in each of 1 streams: accepted are up to 16777216 a stream; join",
        ),
    ],
)
def test_requests_that_are_refused(worker: Any, fields: dict[str, Any], message: str) -> None:
    data = np.zeros(64, np.float32)
    request = c.Request.make(**{"type": 1, "data": data.ctypes.data, "count": 64, **fields})
    assert re.search(message, refusal(whole_library().p4reduce_worker_submit, worker, request, ctypes.c_double(0)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("world_size", 0), ("world_size", 4097), ("rank", 2), ("slots", 0), ("lanes", 9), ("block_size", 1025),
     ("job", 2**16), ("first_seq", 7)],
)  # fmt: skip
def test_memberships_that_are_refused(name: str, value: int) -> None:
    membership = to_c(MEMBERSHIP)
    setattr(membership, name, value)
    said = refusal(whole_library().p4reduce_worker_new, membership, None)
    assert f"{name} is {value}: accepted are" in said
    assert name != "first_seq" or said.endswith("even numbers: slots start in half 0")


def test_timing_that_is_refused() -> None:
    timing = Timing()
    object.__setattr__(timing, "margin", 5.0)
    with pytest.raises(ValueError, match="accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling"):
        Worker(MEMBERSHIP, timing=timing)


def test_a_transport_without_a_socket_of_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="transport is a object: accepted are UdpTransport, RawTransport, a "):
        NativeEngine(object(), MEMBERSHIP, switch="nowhere")  # type: ignore[arg-type]


def test_null_is_accepted_where_the_header_says_so() -> None:
    whole_library().p4reduce_worker_free(None)
    whole_library().p4reduce_free(None)
    assert not whole_library().p4reduce_worker_new(None, None, None)
    assert not whole_library().p4reduce_open(to_c(MEMBERSHIP), None, None)


def test_a_worker_may_be_dropped_with_operations_under_way() -> None:
    worker = Worker(MEMBERSHIP)
    operation = Operation(np.ones(1000, np.float32))
    worker.submit(operation, 0.0)
    del worker
    assert not operation.done


def test_the_engine_describes_its_link() -> None:
    transport = open_transport("udp", Switch("127.0.0.1", 9))
    engine = NativeEngine(transport, MEMBERSHIP, switch="127.0.0.1:9")
    assert engine.link().startswith("UDP")
    assert engine.stats.packets_sent == 0
    engine.close(ValueError("enough"))
    assert engine.link().startswith("UDP")
    assert "has not answered" in engine.progress()


SHAPE = {"job": 7, "generation": 1, "rank": 0, "slots": 8, "lanes": 4, "block_size": 64, "first_seq": 0}


@contextlib.contextmanager
def sockets(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).fileno() for _ in range(count)]


def options_of(sockets: Sequence[int], jobs: Sequence[int], threads: int) -> c.Options:
    return c.Options.make(
        link=c.LINK_UDP, socket=sockets[0], threads=threads, more_count=len(sockets) - 1,
        more_sockets=(ctypes.c_int32 * (len(sockets) - 1))(*sockets[1:]),
        more_jobs=(ctypes.c_uint32 * len(jobs))(*jobs),
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("third", [-1, 0, 1])
def test_sockets_are_several(threads: int, third: int) -> None:
    """third: -1, or which of the others."""
    with sockets(2) as given:
        given.append(given[third] if third >= 0 else -1)
        options = options_of(given, [8 << 16, 9 << 16], threads)
        said = refusal(whole_library().p4reduce_open, c.Membership.make(world_size=1, **SHAPE), options)
    assert said == f"a socket is {given[2]}: accepted are open ones, each once"


@pytest.mark.parametrize("jobs", [(8, 0), (8, 7), (8, 8)])
def test_threads_have_jobs_of_their_own(jobs: tuple[int, int]) -> None:
    with sockets(3) as given:
        options = options_of(given, [job << 16 | 1 for job in jobs], 3)
        said = refusal(whole_library().p4reduce_open, c.Membership.make(world_size=1, **SHAPE), options)
    assert said.startswith(f"more_jobs has job {jobs[1]}: accepted are numbers from 1 on, each once")


def test_ranks_that_share_a_stream_have_one_thread() -> None:
    local, member = (
        c.LocalOptions.make(rendezvous=b"nobody", timeout=1),
        c.Membership.make(world_size=2, sharing=1, **SHAPE),
    )
    with sockets(2) as given:
        said = refusal(whole_library().p4reduce_open_sharing, member, options_of(given, [8 << 16], 2), local)
        assert said == "threads is 2: accepted is 1 where ranks share streams"
        options = c.Options(size=4, switch_address=ctypes.c_char_p(1))  # which is not among the first 4 bytes
        assert "link is 0" in refusal(whole_library().p4reduce_open_sharing, member, options, local)


def test_ranks_that_send_nothing_are_on_one_host() -> None:
    member = c.Membership.make(world_size=3, sharing=1, hosts=(ctypes.c_uint16 * 4096)(0, 0, 1), **SHAPE)
    local = c.LocalOptions.make(rendezvous=b"nobody", timeout=0.1)
    said = refusal(whole_library().p4reduce_open_local, member, local)
    assert said == "hosts has 2 hosts: accepted is one, of all ranks"


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ("7,8", ""),
        ("7;8", "P4REDUCE_SEAT: cannot understand job=7;8"),
        ("7,8,9", "P4REDUCE_SEAT: job has 3 numbers: accepted are 1 and 2, one for each socket"),
    ],
)
def test_a_seat_names_a_job_for_each_aggregator(monkeypatch: pytest.MonkeyPatch, jobs: str, said: str) -> None:
    """An earlier library accepts one number."""
    opened = ctypes.CDLL(str(find())).p4reduce_open_from_environment
    opened.restype = ctypes.c_void_p
    with contextlib.closing(open_transports("udp", [Switch("127.0.0.1", 9)] * 2)) as link:
        first, second = (part.fileno() for part in link.parts)  # type: ignore[attr-defined]
        seat = "generation=1 rank=0 world_size=1 slots=8 lanes=4 block_size=64 first_seq=0 link=1"
        monkeypatch.setenv("P4REDUCE_SEAT", f"job={jobs} {seat} socket={first} more_sockets={second}")
        if said:
            assert refusal(lambda error: opened(ctypes.byref(error))) == said
        else:
            whole_library().p4reduce_free(ctypes.c_void_p(opened(None)))


@pytest.mark.parametrize(
    ("ether_type", "size", "said"),
    [
        (0x0800, 42, ""),
        (0x86DD, 62, ""),
        (0x0800, 62, "cannot understand headers=" + "00" * 12 + "0800"),
        (0x86DD, 42, "cannot understand headers=" + "00" * 12 + "86dd"),
        (0x86DD, 63, "cannot understand headers=" + "00" * 12 + "86dd"),
        (0x8100, 62, "cannot understand headers=" + "00" * 12 + "8100"),
    ],
)
def test_a_seat_has_headers_of_either_family(
    monkeypatch: pytest.MonkeyPatch, ether_type: int, size: int, said: str
) -> None:
    opened = ctypes.CDLL(str(find())).p4reduce_open_from_environment
    opened.restype = ctypes.c_void_p
    headers = (bytes(12) + ether_type.to_bytes(2, "big")).ljust(size, b"\0").hex()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        seat = "job=1 generation=1 rank=0 world_size=1 slots=8 lanes=4 block_size=64 first_seq=0 link=2"
        monkeypatch.setenv("P4REDUCE_SEAT", f"{seat} socket={unused.fileno()} headers={headers}")
        if said:
            assert refusal(lambda error: opened(ctypes.byref(error))).startswith(f"P4REDUCE_SEAT: {said}")
        else:
            whole_library().p4reduce_free(ctypes.c_void_p(opened(None)))


def test_headers_of_another_protocol_are_refused() -> None:
    headers = (bytes(12) + b"\x08\x06").ljust(62, b"\0")
    options = c.Options.make(link=c.LINK_PACKET, socket=0, headers=headers)
    said = refusal(whole_library().p4reduce_open, c.Membership.make(world_size=1, **SHAPE), options)
    assert said == "headers have EtherType 0x0806: accepted are 0x0800 (IPv4), 0x86dd (IPv6)"


def test_a_seat_may_not_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_SEAT", "x" * 3000)
    opened = ctypes.CDLL(str(find())).p4reduce_open_from_environment
    opened.restype = ctypes.c_void_p
    said = refusal(lambda error: opened(ctypes.byref(error)))
    assert said == "P4REDUCE_SEAT has 3000 characters: accepted are up to 2047"
