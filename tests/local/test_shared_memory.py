# SPDX-License-Identifier: Apache-2.0
"""Tensors that other ranks map: sums are the reference's, bit for bit, and what goes wrong spoils nobody's memory."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import p4reduce
from p4reduce.errors import P4ReduceError
from p4reduce.local.host import COPIES
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.forking import said_by_child
from tests.support.hostlib.local_engines import Ranks, ranks, without_standstill
from tests.support.hostlib.memory import PLACEMENTS, shared
from tests.support.hostlib.sums import DTYPES, SEED, Array, check_random_sums, random_array

from .starving import Reuses, starved, thread_of

SIZE = 1 << 20


def mappings(kind: str = "") -> list[str]:
    """Return this process's mappings of shared tensors: its own, and those that its ranks have of each other's.

    kind: "s" for shared mappings, "p" for private ones.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "p4reduce tensor" in line and line.split()[1][3] in (kind or "sp")]


def reduce_all(job: Ranks, arrays: list[Array], given: list[Array], **options: Any) -> None:
    job.reduce([Operation(array, **options) for array in given])
    with np.errstate(all="ignore"):
        expected = reference_allreduce(arrays)
    for array in given:
        assert array.tobytes() == expected.tobytes()


def random_arrays(count: int, size: int, density: float) -> list[Array]:
    random = np.random.default_rng(SEED)
    return [random_array(random, DTYPES[0], size, density) for _ in range(count)]


def test_an_array_of_zeros_that_lives_as_long_as_its_views() -> None:
    gc.collect()
    before = len(mappings())
    array = p4reduce.shared_empty((3, 5), np.int16)
    assert (array.shape, array.dtype, array.any()) == ((3, 5), np.int16, False)
    view = array[1, 2:]
    del array
    gc.collect()
    assert len(mappings()) == before + 1
    view[:] = 7
    assert view.tolist() == [7, 7, 7]
    del view
    gc.collect()
    assert len(mappings()) == before


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    before = len(mappings())
    tensor = p4reduce.shared_empty((2, 3), torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((2, 3), torch.bfloat16, "cpu")
    assert not tensor.any()
    row = tensor[1]
    del tensor
    row += 1
    assert row.tolist() == [1, 1, 1]
    assert len(mappings()) == before + 1
    assert p4reduce.shared_empty((), torch.int32).shape == ()
    assert p4reduce.shared_empty((0, 3), torch.float32).shape == (0, 3)


@pytest.mark.parametrize("shape", [(), 0, (0, 4), 3, (2, 1, 2)])
def test_shapes(shape: Any) -> None:
    assert p4reduce.shared_empty(shape).shape == np.empty(shape).shape


def test_what_is_no_array() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        p4reduce.shared_empty((3, -1))
    with pytest.raises(ValueError, match="Python objects"):
        p4reduce.shared_empty(3, object)
    for shape in ("ab", 3.5, None, (2, "3")):
        with pytest.raises(TypeError, match=r"shape=.*: accepted are an integer and a sequence of integers"):
            p4reduce.shared_empty(shape)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match=r"shape=\(1152921504606846976,\): .*4611686018427387904 bytes"):
        p4reduce.shared_empty(1 << 60)


@pytest.mark.parametrize("shape", [2**62, 2**62 + 1, (2**40, 2**40), 2**64 + 1, (0, 2**64)])
def test_sizes_of_more_than_64_bits(shape: Any) -> None:
    dtypes: list[Any] = [np.float32]
    with contextlib.suppress(ImportError):
        import torch

        dtypes.append(torch.float32)
    descriptors = len(os.listdir("/proc/self/fd"))
    for dtype in dtypes:
        with pytest.raises(ValueError, match=r"shape=\(.*\): accepted are arrays of up to 9223372036854775807 bytes"):
            p4reduce.shared_empty(shape, dtype)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_many_blocks_of_one_value(dtype: type) -> None:
    """With blocks of one value, the bytes that are scanned at once hold more blocks than a piece has."""
    random = np.random.default_rng(SEED)
    arrays = [random.standard_normal(300_000).astype(dtype) for _ in range(3)]
    given = [shared(array) for array in arrays]
    with ranks(3, 1) as job:
        job.reduce([Operation(array) for array in given])
    expected = reference_allreduce(arrays, "sum", 1)
    assert [array.tobytes() for array in given] == [expected.tobytes()] * 3


@pytest.mark.parametrize("copies", ["0", "1"])
@pytest.mark.parametrize("placement", ["copied", "at an offset", "some shared"])
def test_slices_and_some_that_are_not_shared(placement: str, copies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPIES, copies)
    with ranks(3) as job:
        assert ("copies" in job.engines[0].link()) == (copies == "1")
        check_random_sums(job, 8, SEED + 200, placement=PLACEMENTS[placement])
        arrays = random_arrays(3, 1_500_001, 0.5)
        reduce_all(job, arrays, [PLACEMENTS[placement](rank, array) for rank, array in enumerate(arrays)])


def test_each_is_mapped_once() -> None:
    gc.collect()
    before = len(mappings())
    with ranks(3) as job:
        arrays = random_arrays(3, SIZE, 1.0)
        given = [shared(array) for array in arrays]
        reduce_all(job, arrays, given)
        assert len(mappings()) == before + 9
        job.reduce([Operation(array[1000:500_000]) for array in given])
        assert len(mappings()) == before + 9
    assert len(mappings()) == before + 3


@pytest.mark.parametrize("zeros", [0.0, -0.0])
def test_zeros_become_positive(zeros: float) -> None:
    with ranks(2) as job:
        given = [shared(np.full(100_000, sign * zeros, np.float32)) for sign in (1, -1)]
        given[0][70_000] = 3
        job.reduce([Operation(array) for array in given])
        for array in given:
            assert not np.signbit(array).any()
            assert np.flatnonzero(array).tolist() == [70_000]


@pytest.mark.parametrize("copy", [np.copy, shared])
@pytest.mark.parametrize("size", [500, 200_000])
@pytest.mark.parametrize("options", [{"zeros": "sent"}, {"residual": True}, {"read_only": True}])
def test_what_is_not_done_in_place_is_as_ever(options: dict[str, Any], size: int, copy: Any) -> None:
    """One rank alone asks for something that is not done in place."""
    arrays = random_arrays(3, size, 0.9)
    given = [copy(array) for array in arrays]
    own = dict(options)
    if own.get("residual"):
        own["residual"] = np.zeros(size, np.float32)
    given[1].flags.writeable = "read_only" not in own
    with ranks(3) as job:
        job.reduce([Operation(array, **(own if rank == 1 else {})) for rank, array in enumerate(given)])
    with np.errstate(all="ignore"):
        expected = reference_allreduce(arrays)
    for rank, array in enumerate(given):
        kept = arrays[1] if rank == 1 and "read_only" in own else expected
        assert array.tobytes() == kept.tobytes()


def test_freed_memory_and_its_address_used_again() -> None:
    gc.collect()
    before = len(mappings())
    seen: set[int] = set()
    again = 0
    with ranks(2) as job:
        for number in range(40):
            arrays = [np.full(100_000, rank + number, np.float32) for rank in range(2)]
            given = [shared(array) for array in arrays]
            again += len(seen & {array.ctypes.data for array in given})
            seen |= {array.ctypes.data for array in given}
            reduce_all(job, arrays, given)
            assert len(mappings()) <= before + 2 + 4
            del given
            gc.collect()
            if again > 2:
                break
    assert len(mappings()) == before
    if again == 0:
        pytest.skip("the kernel has used none of 80 addresses again")


def test_many_regions() -> None:
    with ranks(2) as job:
        arrays = [[np.full(20_000, rank + number, np.float32) for rank in range(2)] for number in range(100)]
        given = [[shared(array) for array in some] for some in arrays]
        for some, theirs in zip(given, arrays, strict=True):
            reduce_all(job, theirs, some)


def test_a_forked_process_shares_it_and_frees_nothing() -> None:
    array = shared(np.arange(5000, dtype=np.float32))

    def uses() -> None:
        nonlocal array
        assert array[4999] == 4999
        array[0] = 77
        del array

    assert said_by_child(uses) == "None"
    assert array[0] == 77
    assert (array[1:] == np.arange(1, 5000)).all()


def test_a_forked_process_keeps_what_its_parent_frees() -> None:
    array = shared(np.arange(5000, dtype=np.float32))
    freed, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(freed, 1)
        os._exit(0 if (array == np.arange(5000)).all() else 1)
    del array
    gc.collect()
    os.write(told, b"!")
    assert os.waitpid(child, 0)[1] == 0
    os.close(freed)
    os.close(told)


def test_who_waits_in_vain_keeps_shared_memory() -> None:
    """A rank keeps its shared memory after a timeout if no other rank can have begun to write to it."""
    with ranks(2) as job:
        array = shared(np.ones(SIZE, np.float32))
        error = job.begin(0, Operation(array), timeout=0.2).wait()
        said = without_standstill(error)
        assert said == "operation of 0 did not end within 0.2 s: waiting for rank 1 on this host"
        other = shared(np.ones(SIZE, np.float32))
        late = job.begin(1, Operation(other), timeout=0.2).wait()
        assert late is not None
        assert (array == 1).all()
        assert (other == 1).all()
        assert not mappings("p")


def test_ranks_that_call_other_things_keep_theirs() -> None:
    with ranks(2) as job:
        given = [shared(np.ones(SIZE + rank, np.float32)) for rank in range(2)]
        pending = [job.begin(rank, Operation(array)) for rank, array in enumerate(given)]
        assert [type(each.wait()).__name__ for each in pending] == ["MismatchError"] * 2
        assert all((array == 1).all() for array in given)
        assert not mappings("p")


@pytest.mark.parametrize("copy", [np.copy, shared])
def test_who_gives_up_has_its_tensor_to_itself(copy: Any) -> None:
    """The others read it until they have all sums, and write to it if it is shared: to something else then."""
    given_up = 0
    for attempt in range(30):
        with ranks(2) as pair:
            ours, theirs = copy(np.ones(SIZE * 8, np.float32)), copy(np.full(SIZE * 8, 2, np.float32))
            beside = copy(np.full(10, 5, np.float32))
            gives_up = Reuses(ours)
            with starved(thread_of("rank 1")):
                slow = pair.begin(1, Operation(theirs))
                late = 0.005 * (1 + attempt % 8)
                pair.engines[0].submit(Operation(ours), name="it", timeout=late, on_end=gives_up)
                failed = gives_up.wait() is not None
            if failed:
                time.sleep(0.1)
                given_up += len(mappings("p")) if copy is shared else 1
                pair.engines[1].fail(P4ReduceError("rank 0 has gone"))
            if slow.wait() is None:
                assert (theirs == 3).all()
            assert (ours == (777 if failed else 3)).all()
            assert (beside == 5).all()
        if given_up >= 4:
            break
    if not given_up:
        pytest.skip("no rank gave up while another was at its tensor: this machine does not starve a thread")


def test_nothing_has_a_name() -> None:
    array = p4reduce.shared_empty(10)
    (line,) = [line for line in mappings() if line.startswith(f"{array.ctypes.data:x}-")]
    assert re.search(r"/memfd:p4reduce tensor \(deleted\)$", line)
