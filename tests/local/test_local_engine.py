# SPDX-License-Identifier: Apache-2.0
"""Sums in shared memory are those of the reference, bit for bit; and what goes wrong is said."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout, MismatchError, P4ReduceError
from p4reduce.local import host
from p4reduce.local.engine import LocalEngine, rendezvous_name
from p4reduce.local.host import _LAYOUT, digest
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.c_builds import ROOT
from tests.support.hostlib.local_engines import NoTransport, memberships, ranks
from tests.support.hostlib.memory import PLACEMENTS, READABLE, UNREADABLE
from tests.support.hostlib.sums import DTYPES, SEED, SIZES, check_random_sums, random_array
from tests.support.waiting import stays, wait_until


@pytest.mark.parametrize("placement", READABLE)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sums_are_the_references(world_size: int, placement: str) -> None:
    with ranks(world_size) as job:
        assert "process_vm_readv" in job.engines[0].link()
        check_random_sums(job, 10, SEED, placement=PLACEMENTS[placement])


@pytest.mark.parametrize("placement", UNREADABLE)
@pytest.mark.parametrize("world_size", [2, 3])
def test_sums_of_what_cannot_be_read_are_the_references(world_size: int, placement: str) -> None:
    """Each engine counts such fallbacks, and all count the same number."""
    with ranks(world_size) as job:
        check_random_sums(job, 12, SEED, sizes=SIZES[4:], placement=PLACEMENTS[placement])
        fallbacks = {engine.stats.local_fallbacks for engine in job.engines}
        assert len(fallbacks) == 1
        assert 0 not in fallbacks


def test_what_is_counted_is_the_same_everywhere() -> None:
    random = np.random.default_rng(SEED)
    arrays = [random_array(random, DTYPES[0], SIZES[-1], 0.6) for _ in range(2)]
    counts = []
    for placement in PLACEMENTS.values():
        with ranks(2) as job:
            for _ in range(2):
                job.reduce([Operation(placement(rank, array)) for rank, array in enumerate(arrays)])
            stats = [engine.stats for engine in job.engines]
            counts.append([(each.blocks_sent, each.blocks_skipped, each.blocks_received) for each in stats])
    assert counts == [counts[0]] * len(PLACEMENTS)
    assert counts[0][0][0] > 0


@pytest.mark.parametrize("begin", [0, 1, 4, 15])
def test_large_tensors_wherever_they_begin_in_a_cache_line(begin: int) -> None:
    """Their sums are written past the caches, and nothing beside them is."""
    size, line, beside = (8 << 20) // 4 + 77, 16, np.float32(7)
    arrays = [random_array(np.random.default_rng(rank), np.dtype(np.float32), size, 0.1) for rank in range(3)]
    with np.errstate(all="ignore"):
        expected = reference_allreduce(arrays)
    rooms = [np.full(size + 3 * line, beside) for _ in arrays]
    offsets = [-room.ctypes.data // 4 % line + begin for room in rooms]
    given = [room[offset : offset + size] for room, offset in zip(rooms, offsets, strict=True)]
    for own, array in zip(given, arrays, strict=True):
        own[:] = array
    with ranks(3) as job:
        job.reduce([Operation(own) for own in given])
    for room, offset, own in zip(rooms, offsets, given, strict=True):
        assert own.ctypes.data % 64 == 4 * begin
        assert own.tobytes() == expected.tobytes()
        assert (room[:offset] == beside).all()
        assert (room[offset + size :] == beside).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("world_size", [2, 4, 17, 40])
def test_many_sums(world_size: int, seed: int) -> None:
    with ranks(world_size) as job:
        for placement in ("copied", "shared", "some shared")[: 1 if world_size == 40 else 3]:
            check_random_sums(job, 12, SEED + 1000 * seed, placement=PLACEMENTS[placement])


@pytest.mark.parametrize("zeros", ["first", "sent"])
def test_zeros_that_count(zeros: Any) -> None:
    arrays = [np.zeros(100_000, np.float32) for _ in range(2)]
    arrays[0][64 * 100] = 1
    with ranks(2) as job:
        job.reduce([Operation(array, zeros=zeros) for array in arrays])
        blocks = -(-100_000 // 64)
        stats = job.engines[1].stats
        assert stats.blocks_sent == (blocks if zeros == "sent" else 32)
        assert stats.blocks_sent + stats.blocks_skipped == blocks
    assert arrays[0].tobytes() == arrays[1].tobytes()
    assert np.flatnonzero(arrays[0]).tolist() == [6400]


@pytest.mark.parametrize("_", range(8))
def test_a_disagreement_is_told_also_where_a_rank_has_left_for_it(_: int) -> None:
    with ranks(2) as job:
        waits = job.begin(0, Operation(np.ones(100, np.float32)))
        assert "waiting for rank 1" in job.engines[0].progress()
        assert isinstance(job.begin(1, Operation(np.ones(101, np.float32))).wait(), MismatchError)
        job.engines[0].fail(P4ReduceError("rank 1 has left"))
        assert isinstance(waits.wait(), MismatchError)


def test_a_rank_that_does_not_come_to_the_rendezvous_is_named() -> None:
    def come(membership: Any) -> str:
        with pytest.raises(CollectiveTimeout) as error:
            LocalEngine(NoTransport(), membership, switch="", timeout=1.0)
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        assert any("rank 2 has not" in said for said in pool.map(come, memberships(3)[:2]))


def test_a_rank_that_waits_for_the_first_keeps_its_name() -> None:
    """A process that is forked meanwhile has it, too, and so no other socket of this rank could get it."""
    second = memberships(2)[1]

    def is_taken() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            try:
                other.bind(f"\0{rendezvous_name(second)}\1")
            except OSError:
                return True
        return False

    with ThreadPoolExecutor(1) as pool:
        rank = pool.submit(LocalEngine, NoTransport(), second, switch="", timeout=3)
        wait_until(lambda: is_taken() or rank.done(), "the name to be taken")
        stays(is_taken, "the name is free again", 0.05)
        assert isinstance(rank.exception(), CollectiveTimeout)


def test_sockets_of_two_types_have_no_name_in_common() -> None:
    """Under gVisor, sockets of both types share one namespace."""
    with ranks(2) as job:
        name = f"@{rendezvous_name(job.memberships[0])}".encode()

        def seen() -> set[tuple[bytes, bytes]]:
            """Return names and types, or nothing if other processes' sockets have hidden some from the reader."""
            sockets = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_bytes().splitlines()]
            found = {(words[7], words[4]) for words in sockets if len(words) == 8 and words[7].startswith(name)}
            return found if len({kind for _, kind in found}) == 2 else set()

        types = wait_until(seen, "sockets of two types")
    assert len({name for name, _ in types}) == len(types)


def test_all_ranks_can_be_woken_at_once() -> None:
    """The kernel counts up to 896 bytes for each datagram that has not been read yet."""
    rooms = []
    with ranks(2) as job:
        name = f"\0{rendezvous_name(job.memberships[0])} wakeup".encode()
        for file in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError), socket.fromfd(file, socket.AF_UNIX, socket.SOCK_DGRAM) as own:
                if own.getsockname()[: len(name)] == name:
                    rooms.append(own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    assert len(rooms) == 2
    assert min(rooms) >= 254 * 896


def test_a_rank_that_may_open_no_more_files_says_so() -> None:
    """The first rank is there, and is not the one that is named."""
    first, second = memberships(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(f"\0{rendezvous_name(first)}")
        listener.listen()
        rank = pool.submit(LocalEngine, NoTransport(), second, switch="", timeout=20)
        connection, _ = listener.accept()
        with connection, Path(os.devnull).open("rb") as memory, no_more_files():
            socket.send_fds(connection, [bytes([_LAYOUT])], [memory.fileno()])
            error = rank.exception()
    assert isinstance(error, P4ReduceError)
    assert os.strerror(errno.EMFILE) in str(error)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Keep as many files open as the limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(opened[0]))
        yield
    finally:
        for file in opened:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_digest_is_this_hosts() -> None:
    assert digest() == digest()
    assert len(digest()) == 64


def test_the_layout_is_that_of_the_c_code() -> None:
    found = re.search(r"\bLAYOUT = (\d+)", (ROOT / "hostlib" / "csrc" / "shm" / "segment.h").read_text())
    assert found is not None
    assert int(found[1]) == host._LAYOUT


def test_another_one_makes_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.digest()
    monkeypatch.setattr(host, "_LAYOUT", host._LAYOUT + 1)
    assert host.digest() != before
