# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors over a model of the switch: the same bits as the dense reduction of the rows that anyone has."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4reduce import Communicator, JobAborted, MismatchError, P4ReduceError
from p4reduce.collectives import sparse
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.hostlib.fake_session import FakeSession
from tests.support.hostlib.in_process import Join, error_of, together

torch = pytest.importorskip("torch", reason="needs torch")

SIZE = 3
COUNT = 4 if sys.byteorder == "little" else 5  # of a vector: the header's word, behind sparse_dim and shape


@pytest.fixture(params=[sparse.INLINE, 0], ids=["inline", "three operations"])
def trio(join: Join, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Communicator]:
    """Return the ranks of a job in which few rows travel with the header, or never do."""
    monkeypatch.setattr(sparse, "INLINE", request.param)
    return join(SIZE)


examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@st.composite
def same_shaped(draw: st.DrawFn) -> list[Any]:
    """Return a sparse tensor for each rank, of the same shape. Rows may be repeated, and are in any order."""
    sparse_shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    dense = draw(st.lists(st.integers(0, 70), max_size=2))
    tensors = []
    for _ in range(SIZE):
        count = draw(st.integers(0, 8))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
        indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in sparse_shape])
        tensors.append(
            torch.sparse_coo_tensor(
                indices,
                torch.randn(count, *dense, generator=generator),
                (*sparse_shape, *dense),
                check_invariants=True,
            )
        )
    return tensors


def rows_of(tensor: Any, union: Any) -> Any:
    """Return the dense values of the rows of a union: shape (rows, *dense dimensions)."""
    return tensor.detach().to_dense()[tuple(union)]


@examples
@given(tensors=same_shaped(), op=st.sampled_from(["sum", "average"]))
def test_the_sum_has_the_bits_of_the_dense_one(trio: list[Communicator], tensors: list[Any], op: Any) -> None:
    shape, sparse_dim = tensors[0].shape, tensors[0].sparse_dim()
    every = torch.cat([tensor._indices() for tensor in tensors], 1)
    union = torch.sparse_coo_tensor(every, torch.ones(every.shape[1]), shape[:sparse_dim]).coalesce().indices()
    expected = reference_allreduce(
        [rows_of(tensor, union).contiguous().numpy() for tensor in tensors], "avg" if op == "average" else "sum"
    )
    results = together(trio, lambda each: each.allreduce(tensors[each.rank], op))
    for tensor, result in zip(tensors, results, strict=True):
        assert result is tensor
        assert tensor.is_coalesced()
        assert (tensor.shape, tensor.sparse_dim()) == (shape, sparse_dim)
        assert torch.equal(tensor.indices(), union)
        np.testing.assert_array_equal(tensor.values().numpy().view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_other_dtypes(trio: list[Communicator], dtype: str) -> None:
    tensors = [torch.eye(5).to(getattr(torch, dtype)).to_sparse() for _ in trio]
    together(trio, lambda each: each.allreduce(tensors[each.rank]))
    for tensor in tensors:
        assert tensor.dtype == getattr(torch, dtype)
        assert torch.equal(tensor.to_dense(), torch.eye(5).to(tensor.dtype) * SIZE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_of_the_same_index_are_added_up_as_float32(trio: list[Communicator], dtype: str) -> None:
    """Sums in bfloat16 would be wrong, because 256 + 1 is 256 there."""
    many = torch.ones(900).to(getattr(torch, dtype))
    tensors = [torch.sparse_coo_tensor(torch.full((1, 900), 3), many, (10,), check_invariants=True) for _ in trio]
    together(trio, lambda each: each.allreduce(tensors[each.rank]))
    exact = torch.tensor(900.0 * SIZE).to(many.dtype)
    assert all(tensor.values().tolist() == [exact.item()] for tensor in tensors)


@pytest.mark.parametrize(("rows", "size"), [([2, 0, 1], 8), ([1, 1], 2), ([60, 3], 70), ([5, 5], 70)], ids=str)
def test_what_is_only_called_coalesced_is_coalesced(trio: list[Communicator], rows: list[int], size: int) -> None:
    values = torch.arange(1.0, 1 + len(rows))

    def called() -> Any:
        return torch.sparse_coo_tensor(
            torch.tensor([rows]), values, (size,), is_coalesced=True, check_invariants=False
        )  # fmt: skip

    exact = torch.zeros(size).index_add_(0, torch.tensor(rows), values) * SIZE
    tensors = [called() for _ in trio]
    together(trio, lambda each: each.allreduce(tensors[each.rank]))
    assert all(torch.equal(tensor.to_dense(), exact) for tensor in tensors)


def test_only_ones_own_rows_are_sent(trio: list[Communicator]) -> None:
    """A tensor that would take terabytes dense; each rank has ten rows of its own, of one block each."""
    rows = 2**33
    tensors = [
        torch.sparse_coo_tensor(torch.arange(10)[None] * SIZE + rank + rows - 100, torch.ones(10, 64), (rows, 64))
        for rank in range(SIZE)
    ]
    together(trio, lambda each: each.allreduce(tensors[each.rank]))
    assert [tensor.indices().shape[1] for tensor in tensors] == [30] * SIZE
    # One block of the header, one or two of the indices, and the ten of the rows.
    assert all(12 <= each.stats().blocks_sent <= 13 for each in trio)


def test_what_is_small_takes_one_operation(join: Join) -> None:
    pair = join(2)
    for rows, operations in ((300, 1), (600, 3)):
        before = [each.stats().operations for each in pair]
        tensors = [torch.sparse_coo_tensor(torch.arange(rows)[None] * 7, torch.ones(rows), (10_000,)) for _ in pair]
        together(pair, lambda each: each.allreduce(tensors[each.rank]))  # noqa: B023
        assert [each.stats().operations - n for each, n in zip(pair, before, strict=True)] == [operations] * 2
        assert all(torch.equal(tensor.values(), torch.full((rows,), 2.0)) for tensor in tensors)


@pytest.mark.parametrize("what", ["count", "indices"])
def test_rows_that_cannot_be_are_an_error_that_names_the_rank(
    trio: list[Communicator], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = sparse.Code.encode

    def faulty(code: sparse.Code, indices: Any) -> Any:
        words = encode(code, indices)
        return np.full_like(words, -1) if indices.size == 77 else words

    monkeypatch.setattr(sparse.Code, "encode", faulty)
    tensors = [torch.sparse_coo_tensor(torch.arange(80)[None] * 7, torch.ones(80), (10_000,)) for _ in trio]
    tensors[1] = torch.sparse_coo_tensor(torch.arange(77)[None] * 7, torch.ones(77), (10_000,))
    if what == "count":
        monkeypatch.setattr(sparse.Reduction, "_own_header", lambda self: [*self._rows.description, 77 * 10**6, 0, 0])
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(tensors[each.rank])))
    wanted = "rank 0" if what == "count" else "rank 1"
    assert all(isinstance(error, P4ReduceError) and f"{wanted} announced rows" in str(error) for error in errors)
    assert torch.equal(tensors[1].coalesce().values(), torch.ones(77))


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "by elements"])
def test_more_than_there_could_be_is_an_error_before_there_is_memory_for_it(
    trio: list[Communicator], dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_header = sparse.Reduction._own_header

    def faulty(reduction: sparse.Reduction) -> list[int]:
        header = own_header(reduction)
        if reduction._group.rank == 2:
            header[-3:-1] = (11, 12) if dense else (2**61, 0)
        return header

    monkeypatch.setattr(sparse.Reduction, "_own_header", faulty)
    tensors = [torch.sparse_coo_tensor(torch.arange(80)[None], torch.ones(80), (2**62,)) for _ in trio]
    if dense:
        tensors = [torch.eye(12) for _ in trio]
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(tensors[each.rank], layout="elements")))
    wanted = "11 elements of 144 in 12 blocks" if dense else f"{2**61} rows of 1 values: accepted are up to"
    for error in errors:
        assert isinstance(error, P4ReduceError)
        assert f"rank 2 announced rows that cannot exist: {wanted}" in str(error)
    together(trio, lambda each: each.barrier())


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank that closes without `leave` end the job for the others, as at a real controller."""
    close = FakeSession.close

    def closed(session: FakeSession) -> None:
        close(session)
        if session.job is not None and session.rank not in session.job.left and len(session.job.closed) == 1:
            session.abort(session.rank)

    monkeypatch.setattr(FakeSession, "close", closed)


def ends(trio: list[Communicator], tensors: list[Any]) -> list[BaseException | None]:
    """Call one allreduce, which must end long before its time limit of 20 s, and return the error of each rank."""
    started = time.monotonic()
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(tensors[each.rank])))
    assert time.monotonic() - started < 15, "ranks waited for one that had raised"
    return errors


def many(rows: int = 600) -> Any:
    """Return a tensor with more rows than travel with the header."""
    return torch.sparse_coo_tensor(torch.arange(rows)[None] * 7, torch.ones(rows), (10_000,))


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize(("operation", "position"), [(0, "count"), (0, "last"), (1, "first")])
def test_whose_rows_were_overwritten_ends_the_job(
    trio: list[Communicator], operation: int, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 adds to what rank 0 tells: where it does not look impossible, only rank 0 can know."""
    faulty = trio[2]
    prepare, begun = faulty._engine.prepare, 0

    def overwriting(operation_: Any, name: str) -> Any:
        nonlocal begun
        if begun == operation:
            words = operation_.data.reshape(SIZE, -1)[0] if operation == 0 else operation_.data
            words[{"count": COUNT, "first": 0, "last": -1}[position]] += 1
        begun += 1
        return prepare(operation_, name)

    tensors = [many() for _ in trio]
    monkeypatch.setattr(faulty._engine, "prepare", overwriting)
    errors = ends(trio, tensors)
    assert "another rank overwrote the row counts or indices that this rank, 0, sent" in str(errors[0])
    assert all(isinstance(error, P4ReduceError) for error in errors[1:])
    with pytest.raises(P4ReduceError, match="overwrote the row counts or indices that this rank, 0"):
        trio[0].barrier()


@pytest.mark.usefixtures("leaving")
def test_an_error_of_one_rank_between_operations_ends_the_job(
    trio: list[Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    scatter = sparse._scatter

    def without_memory(union: Any, indices: Any, values: Any) -> Any:
        if indices.size == 599:
            raise MemoryError("no room")
        return scatter(union, indices, values)

    monkeypatch.setattr(sparse, "_scatter", without_memory)
    errors = ends(trio, [many(), many(599), many()])
    assert isinstance(errors[1], MemoryError)
    assert [type(error) for error in errors[::2]] == [JobAborted] * 2
    with pytest.raises(P4ReduceError, match=r"allreduce \(sum\) of rows .* cannot go on: MemoryError: no room"):
        trio[1].barrier()


def test_asynchronously(trio: list[Communicator]) -> None:
    tensors = [torch.eye(4).to_sparse() for _ in trio]

    def work(each: Communicator) -> Any:
        first = each.allreduce_async(np.ones(100, np.float32))
        second = each.allreduce_async(tensors[each.rank], "average")
        first.wait(20)
        return second.result(20)

    for result in together(trio, work):
        assert torch.equal(result.to_dense(), torch.eye(4))


def test_empty_ones(trio: list[Communicator]) -> None:
    for shape in ((5, 64), (0, 3), (4,)):
        tensors = [torch.sparse_coo_tensor(size=shape) for _ in trio]
        together(trio, lambda each: each.allreduce(tensors[each.rank]))  # noqa: B023
        assert [(tensor._nnz(), tuple(tensor.shape)) for tensor in tensors] == [(0, shape)] * SIZE


def test_different_shapes_are_told_and_change_nothing(trio: list[Communicator]) -> None:
    shapes = [(4, 5), (4, 5), (5, 4)]
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(torch.zeros(shapes[each.rank]).to_sparse())))
    for error in errors:
        assert isinstance(error, MismatchError)
        assert "rank 2: (5, 4), sparse_dim 2" in str(error)
    together(trio, lambda each: each.barrier())


@pytest.mark.parametrize("numel", [4, 4000])
@pytest.mark.parametrize(("rows", "elements"), [(0, 3), (1, 0), (1, 1)])
def test_a_tensor_of_no_sparse_dimension_and_a_dense_one_do_not_meet(
    trio: list[Communicator], numel: int, rows: int, elements: int
) -> None:
    def work(each: Communicator) -> None:
        if each.rank == 0:
            indices = torch.zeros((0, rows), dtype=torch.int64)
            each.allreduce(torch.sparse_coo_tensor(indices, torch.ones(rows, numel), (numel,)))
        else:
            each.allreduce((torch.arange(numel) < elements).float(), layout="elements")

    for error in together(trio, lambda each: error_of(lambda: work(each))):
        assert isinstance(error, MismatchError)
        assert f"rank 0: ({numel},), sparse_dim 0; rank 1: {numel} elements of a dense tensor" in str(error)
    together(trio, lambda each: each.barrier())


@pytest.mark.parametrize("rows", [3, 5000])
def test_a_tensor_of_inference_mode(trio: list[Communicator], rows: int) -> None:
    def work(each: Communicator) -> torch.Tensor:
        with torch.inference_mode():
            return each.allreduce(torch.sparse_coo_tensor(torch.arange(rows)[None], torch.ones(rows), (rows,)))

    for result in together(trio, work):
        assert result.to_dense().tolist() == [SIZE] * rows


def test_sparse_and_dense_do_not_meet(trio: list[Communicator]) -> None:
    tensors = [torch.eye(4), torch.eye(4), torch.eye(4).to_sparse()]
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(tensors[each.rank])))
    assert [type(error) for error in errors] == [MismatchError] * SIZE
