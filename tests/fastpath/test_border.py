# SPDX-License-Identifier: Apache-2.0
"""What the C library accepts from its callers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.fastpath.library import library, to_exception
from p4reduce.fastpath.worker import Worker, to_c
from p4reduce.protocol import Membership, Operation, Timing
from p4reduce.transport import Switch, open_transport

RESIDUAL = (ctypes.c_float * 64)()
MEMBERSHIP = Membership(job=1, generation=1, rank=0, world_size=2, slots=1, lanes=1, block_size=64, first_seq=0)


@pytest.fixture
def worker() -> Iterator[Any]:
    handle = ctypes.c_void_p(library().p4reduce_worker_new(to_c(MEMBERSHIP), None, None))
    yield handle
    library().p4reduce_worker_free(handle)


def submit(worker: Any, **fields: Any) -> tuple[int, c.Error]:
    error = c.Error.make()
    data = np.zeros(64, np.float32)
    usual = {"type": 1, "data": data.ctypes.data, "count": 64, **fields}
    return library().p4reduce_worker_submit(worker, c.Request.make(**usual), 0.0, error), error


def test_a_shorter_structure_is_an_older_callers(worker: Any) -> None:
    class Older(ctypes.Structure):
        _fields_ = c.Request._fields_[:4]

    data = np.zeros(64, np.float32)
    older = Older(size=ctypes.sizeof(Older), type=1, data=data.ctypes.data, count=64)
    request = ctypes.cast(ctypes.byref(older), ctypes.POINTER(c.Request))
    assert library().p4reduce_worker_submit(worker, request, 0.0, None) == c.OK


def test_a_longer_structure_is_a_newer_callers(worker: Any) -> None:
    class Newer(ctypes.Structure):
        _fields_ = [*c.Request._fields_, ("new", ctypes.c_uint64)]

    data = np.zeros(64, np.float32)
    for new, status in ((0, c.OK), (1, c.INVALID)):
        newer = Newer(size=ctypes.sizeof(Newer), type=1, data=data.ctypes.data, count=64, new=new)
        request = ctypes.cast(ctypes.byref(newer), ctypes.POINTER(c.Request))
        assert library().p4reduce_worker_submit(worker, request, 0.0, None) == status


def test_a_shorter_error_is_filled_as_far_as_it_goes(worker: Any) -> None:
    class Short(ctypes.Structure):
        _fields_ = [*c.Error._fields_[:4], ("message", ctypes.c_char * 8), ("after", ctypes.c_uint64)]

    short = Short(size=Short.message.offset + 8, after=7)
    request = c.Request.make(type=9)
    pointer = ctypes.cast(ctypes.byref(short), ctypes.POINTER(c.Error))
    assert library().p4reduce_worker_submit(worker, request, 0.0, pointer) == c.INVALID
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
        ({"zeros": 3}, r"zeros is 3: supported are skipped \(0\), first \(1\) and sent \(2\)"),
        ({"timeout": -1.0}, "timeout is -1: it must be 0 or more seconds"),
        ({"timeout": float("nan")}, "timeout is -?nan"),
        ({"dtype": b"x" * 32}, "too long: accepted are up to 31 characters"),
        ({"size": 0}, "request: this version of the library does not understand this structure"),
        (
            {"count": (2**24 + 1) * 64},
            "tensor has 16777217 blocks, 16777217 in each of 1 streams: accepted are up to 16777216 a stream; join",
        ),
    ],
)
def test_requests_that_are_refused(worker: Any, fields: dict[str, Any], message: str) -> None:
    status, error = submit(worker, **fields)
    assert status == c.INVALID
    with pytest.raises(ValueError, match=message):
        raise to_exception(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", 0),
        ("world_size", 256),
        ("rank", 2),
        ("slots", 0),
        ("lanes", 9),
        ("block_size", 1025),
        ("job", 2**16),
    ],
)
def test_memberships_that_are_refused(name: str, value: int) -> None:
    membership = to_c(MEMBERSHIP)
    setattr(membership, name, value)
    error = c.Error.make()
    assert not library().p4reduce_worker_new(membership, None, error)
    assert f"{name} is {value}: accepted are" in str(to_exception(error))


def test_odd_first_round_is_refused() -> None:
    membership = to_c(MEMBERSHIP)
    membership.first_seq = 7
    error = c.Error.make()
    assert not library().p4reduce_worker_new(membership, None, error)
    assert str(to_exception(error)) == "first_seq is 7: accepted are even numbers: slots start in half 0"


def test_timing_that_is_refused() -> None:
    timing = Timing()
    object.__setattr__(timing, "margin", 5.0)
    with pytest.raises(ValueError, match="accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling"):
        Worker(MEMBERSHIP, timing=timing)


def test_a_transport_without_a_socket_of_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="transport is a object: accepted are UdpTransport, RawTransport, a "):
        NativeEngine(object(), MEMBERSHIP, switch="nowhere")  # type: ignore[arg-type]


def test_null_is_accepted_where_the_header_says_so() -> None:
    library().p4reduce_worker_free(None)
    library().p4reduce_free(None)
    assert not library().p4reduce_worker_new(None, None, None)
    assert not library().p4reduce_open(to_c(MEMBERSHIP), None, None)


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
