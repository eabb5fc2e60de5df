# SPDX-License-Identifier: Apache-2.0
"""Every collective, over a model of the switch and with both engines: what is moved arrives bit for bit."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4reduce import CollectiveTimeout, Communicator, JobAborted, MismatchError
from p4reduce import UnsupportedDtype as Unsupported
from p4reduce.collectives import moves
from p4reduce.collectives.plan import Group, Plan
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.tensors.staging import Buffer
from tests.support.hostlib.calls import CALLS
from tests.support.hostlib.in_process import error_of, together

SIZE = 3


# hypothesis may use one job for all its examples: they leave nothing behind.
examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)

NUMPY_DTYPES = [
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex128", ">f8", ">i2",
    "datetime64[s]", "S5",
]  # fmt: skip
TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.uint8,
    torch.bool, torch.complex64, torch.float8_e5m2,
]  # fmt: skip


@st.composite
def same_shaped(draw: st.DrawFn) -> list[Any]:
    """Return an array or tensor of any bits for each rank, all with the same shape, dtype and memory order."""
    dtype = draw(st.sampled_from([*NUMPY_DTYPES, *TORCH_DTYPES]))
    numpy_dtype = np.dtype(dtype) if isinstance(dtype, str) else None
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    size = int(np.prod(shape)) * (numpy_dtype or dtype).itemsize
    step = draw(st.sampled_from([1, -1]))
    order = draw(st.sampled_from("CF"))
    arrays = []
    for rank in range(SIZE):
        seed = draw(st.integers(0, 2**32 - 1))
        bits = np.random.default_rng([seed, rank]).integers(0, 256, size, np.uint8)
        cut = int(draw(st.floats(0, 1)) * size) // 4
        bits[: 4 * cut] = np.tile(np.array([0, 0, 0, draw(st.sampled_from([0, 0x80]))], np.uint8), cut)  # 0 or -0
        if dtype in ("bool", torch.bool):
            bits &= 1
        if numpy_dtype is None:
            tensor = torch.empty(shape, dtype=dtype)
            tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(bits))
            arrays.append(tensor.transpose(0, -1) if shape and order == "F" else tensor)
        else:
            array = np.array(bits.view(numpy_dtype).reshape(shape), order=order)
            arrays.append(array[::step] if shape else array)
    return arrays


def bits(array: Any) -> bytes:
    """Return the bytes of the elements in row-major order."""
    if isinstance(array, np.ndarray):
        return array.astype(array.dtype.newbyteorder("=")).tobytes()
    return bytes(array.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@examples
@given(arrays=same_shaped(), src=st.integers(0, SIZE - 1))
def test_moves_are_bit_exact(trio: list[Communicator], arrays: list[Any], src: int) -> None:
    before = [bits(array) for array in arrays]
    for array, result in zip(arrays, together(trio, lambda each: each.all_gather(arrays[each.rank])), strict=True):
        assert result.shape == (SIZE, *array.shape)
        assert bits(result) == b"".join(before)
    assert [bits(array) for array in arrays] == before
    results = together(trio, lambda each: each.broadcast(arrays[each.rank], src))
    for array, result in zip(arrays, results, strict=True):
        assert result is array
        assert bits(array) == before[src]


def test_odd_tensors_are_moved_as_what_they_show(everyone: list[Communicator]) -> None:
    tensors = [torch.tensor([1 + 2j, 3 - 4j]).conj() for _ in everyone]
    tensors[1] = tensors[1].resolve_conj()
    together(everyone, lambda each: each.broadcast(tensors[each.rank], 0))
    for tensor in tensors:
        assert tensor.tolist() == [1 - 2j, 3 + 4j]
    empty = torch.from_numpy(np.zeros(0))
    assert empty.stride() == (0,), "which torch refuses to view as bytes"
    for result in together(everyone, lambda each: each.all_gather(empty)):
        assert result.shape == (SIZE, 0)


def test_only_ones_own_blocks_are_sent(trio: list[Communicator]) -> None:
    arrays = [np.random.default_rng(rank).standard_normal(64 * 30) for rank in range(SIZE)]
    together(trio, lambda each: each.broadcast(arrays[each.rank], 0))
    assert [each.stats().blocks_sent for each in trio] == [60, 0, 0]
    assert [each.stats().blocks_received for each in trio] == [60] * SIZE
    together(trio, lambda each: each.all_gather(np.ones(64 * 10, np.float32)))
    assert [each.stats().blocks_sent for each in trio] == [70, 10, 10]


def floats(shape: tuple[int, ...]) -> list[npt.NDArray[np.float32]]:
    return [np.random.default_rng([7, rank]).standard_normal(shape).astype(np.float32) for rank in range(SIZE)]


@pytest.mark.parametrize(("op", "factors"), [("sum", (1, 1, 1)), ("average", (1, 1, 1)), ("sum", (0.5, 1.5, 2.5))])
def test_sums_have_the_bits_of_the_reference(trio: list[Communicator], op: Any, factors: tuple[float, ...]) -> None:
    before = floats((SIZE, 50, 3))
    scaled = [array * np.float32(factor) for array, factor in zip(before, factors, strict=True)]
    expected = reference_allreduce(scaled, "avg" if op == "average" else "sum")
    arrays = [array.copy() for array in before]

    def each_rank(name: str, *arguments: Any) -> list[Any]:
        return together(
            trio, lambda each: getattr(each, name)(arrays[each.rank], *arguments, op, factor=factors[each.rank])
        )

    for rank, part in enumerate(each_rank("reduce_scatter")):
        assert part.tobytes() == expected[rank].tobytes()
    assert [bits(array) for array in arrays] == [bits(array) for array in before]
    each_rank("reduce", 1)
    assert [bits(array) for array in arrays] == [bits(each) for each in (before[0], expected, before[2])]
    arrays[1][:] = before[1]
    for array, result in zip(arrays, each_rank("allreduce"), strict=True):
        assert result is array
        assert bits(array) == bits(expected)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extremes_have_the_same_bits_of_arrays_and_tensors(pair: list[Communicator], op: Any, dtype: str) -> None:
    """Zeros of either sign and NaNs of any bits, in a length that vectors do not divide."""
    size = np.dtype(dtype).itemsize
    nans = np.full(10, -1, f"i{size}").view(dtype)
    tensors = [np.concatenate([np.full(100, zero, dtype), nans[:number]]) for number, zero in ((10, -0.0), (10, 0.0))]
    tensors[1][-5:] = np.nan

    def work(each: Communicator) -> bytes:
        own = tensors[each.rank]
        result = each.allreduce(torch.from_numpy(own) if each.rank else own, op)
        return np.asarray(result).tobytes()

    one, other = together(pair, work)
    assert one == other
    assert not np.frombuffer(one, f"i{size}")[:100].any()
    assert np.isnan(np.frombuffer(one, dtype)[-5:]).all()


VALUES: dict[Any, list[Any]] = {
    **{name: [0, 3, 100, 250] for name in ("float16", "float32", "float64", "int64", "uint8", ">i4")},
    "bool": [False, False, True, False],
    torch.uint16: [0, 1, 2**15, 2**16 - 1],
    torch.uint32: [0, 1, 2**31, 2**32 - 1],
    torch.uint64: [0, 2**63 - 1, 2**63, 2**64 - 1],
    torch.bfloat16: [-3.0, -0.5, 2.0, float("inf")],
    torch.float8_e4m3fn: [-448.0, -0.5, 0.0, 448.0],
    torch.float8_e5m2: [-57344.0, -0.0625, 0.0, float("inf")],
}


@pytest.mark.parametrize(("op", "fold"), [("max", max), ("min", min)])
@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_extremes(trio: list[Communicator], dtype: Any, op: Any, fold: Any) -> None:
    rows = [[VALUES[dtype][(rank + number) % 4] for number in range(210)] for rank in range(SIZE)]
    expected = [fold(column) for column in zip(*rows, strict=True)]
    make = partial(np.array, dtype=dtype) if isinstance(dtype, str) else partial(torch.tensor, dtype=dtype)
    stack: Any = np.stack if isinstance(dtype, str) else torch.stack
    arrays, reduced = ([make(row).reshape(35, 6).T for row in rows] for _ in range(2))
    scattered = together(trio, lambda each: each.reduce_scatter(stack([arrays[each.rank]] * SIZE), op))
    together(trio, lambda each: each.reduce(reduced[each.rank], 2, op))
    together(trio, lambda each: each.allreduce(arrays[each.rank], op))
    for result in [*arrays, *scattered, reduced[2]]:
        assert result.T.reshape(-1).tolist() == expected


def test_extremes_of_what_has_no_order_are_refused_before_anything_is_sent(everyone: list[Communicator]) -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("needs a torch that has a dtype without order")
    pairs = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for call in (lambda each: each.allreduce(pairs, "max"), lambda each: each.reduce_scatter(pairs[:3], "min")):
        for each in everyone:
            with pytest.raises(Unsupported, match="of float4_e2m1fn_x2, which torch cannot compare"):
                call(each)
    together(everyone, lambda each: each.barrier())


class Wrapper(torch.Tensor):
    """A tensor without elements of its own, as FakeTensor is."""

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> None:
        raise AssertionError("it was used as if it had elements")


class Sharded(Wrapper):
    """The same, of which a part is at this rank, as of a DTensor."""

    to_local = None


class Plain(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (Sharded, r"tensor is a Sharded, which wraps other tensors: pass tensor.to_local\(\)"),
        (Wrapper, "tensor is a Wrapper, which wraps other tensors: pass what it wraps"),
    ],
)
def test_tensors_that_wrap_others_are_refused_by_name(everyone: list[Communicator], kind: Any, advice: str) -> None:
    wrapper = torch.Tensor._make_wrapper_subclass(kind, (3,), dtype=torch.float32)
    for call in (Communicator.allreduce, Communicator.all_gather, lambda each, it: each.allreduce(it, "max")):
        with pytest.raises(TypeError, match=advice):
            call(everyone[0], wrapper)


def test_other_kinds_of_tensors_are_tensors(everyone: list[Communicator]) -> None:
    plain = [torch.ones(3).as_subclass(Plain), torch.nn.Parameter(torch.ones(3)), torch.ones(3)]
    together(everyone, lambda each: each.allreduce(plain[each.rank]))
    assert [each.tolist() for each in plain] == [[3.0] * 3] * 3


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


ON_DEFAULTS: dict[str, Callable[[Communicator, Any], Any]] = {
    **CALLS,
    "average of float16": lambda each, tensor: each.allreduce(tensor.half(), "average"),
    "sum of a view": lambda each, tensor: each.allreduce(tensor.t(), factor=2.0),
    "sparse": lambda each, tensor: each.allreduce(tensor.to_sparse()).to_dense(),
    "reduce_scatter of float64": lambda each, tensor: each.reduce_scatter(tensor.double(), "min"),
    "broadcast of bytes": lambda each, tensor: each.broadcast(tensor.flatten()[1:4].byte(), 1),
}


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("call", ON_DEFAULTS)
def test_defaults_of_torch_change_nothing(everyone: list[Communicator], call: str) -> None:
    """A default device that has no memory, and another default dtype."""

    def tensor(rank: int) -> Any:
        return torch.arange(SIZE * 40, dtype=torch.float32).reshape(SIZE, 40) * (rank + 1)

    def by_default(each: Communicator) -> Any:
        own = tensor(each.rank)
        with torch.device("meta"):
            return ON_DEFAULTS[call](each, own)

    expected = together(everyone, lambda each: ON_DEFAULTS[call](each, tensor(each.rank)))
    for result, wanted in zip(together(everyone, by_default), expected, strict=True):
        assert result.dtype == wanted.dtype
        assert torch.equal(result, wanted)


def test_all_of_them_asynchronously(trio: list[Communicator]) -> None:
    """All collectives are under way at once, and give what their synchronous forms give."""
    given = floats((SIZE, 40))

    def begin_all(each: Communicator) -> list[Any]:
        handles = [call.start(each, given[each.rank].copy()) for call in CALLS.values()]
        assert each.barrier_async().result(20) is None
        return [handle.result(20) for handle in handles]

    expected = together(trio, lambda each: [call(each, given[each.rank].copy()) for call in CALLS.values()])
    for results, wanted in zip(together(trio, begin_all), expected, strict=True):
        assert [bits(result) for result in results] == [bits(each) for each in wanted]


def test_outputs_may_be_given_and_hold_the_input(trio: list[Communicator]) -> None:
    outs = [np.full((SIZE, 4), 9.0) for _ in trio]
    for rank, out in enumerate(outs):
        out[rank] = rank + 1
    results = together(trio, lambda each: each.all_gather(outs[each.rank][each.rank], out=outs[each.rank]))
    for out, result in zip(outs, results, strict=True):
        assert result is out
        assert out.tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    parts = [np.zeros((2, 2), np.float32)[:, 0] for _ in trio]
    together(trio, lambda each: each.reduce_scatter(np.ones((SIZE, 2), np.float32), out=parts[each.rank]))
    assert [part.tolist() for part in parts] == [[3, 3]] * SIZE


Calls = list[Callable[[Communicator], object]]


@pytest.mark.parametrize(
    "calls",
    [
        [lambda each: each.broadcast(np.ones(3), 0), lambda each: each.broadcast(np.ones(3), 1)],
        [lambda each: each.broadcast(np.ones(3, np.uint8), 0), lambda each: each.broadcast(np.ones(4, np.uint8), 0)],
        [lambda each: each.broadcast(np.ones(3, np.int64), 0), lambda each: each.broadcast(np.ones(3), 0)],
        [lambda each: each.all_gather(np.ones(3)), lambda each: each.allreduce(np.ones(9), "max")],
        [lambda each: each.allreduce(np.ones(9), "min"), lambda each: each.allreduce(np.ones(9), "max")],
        [lambda each: each.reduce(np.ones(3, "f"), 0), lambda each: each.reduce(np.ones(3, "f"), 1)],
        [lambda each: each.reduce_scatter(np.ones((3, 1), "f")), lambda each: each.allreduce(np.ones((3, 1), "f"))],
        [lambda each: each.barrier(), lambda each: each.allreduce(np.ones(0, np.int32))],
        [lambda each: each.allreduce(np.ones(10, "f")), lambda each: each.allreduce(np.ones(11, "f"))],
        [lambda each: each.allreduce(np.ones(9, "f")), lambda each: each.allreduce(np.ones(9, "f"), "average")],
    ],
)
def test_ranks_that_call_different_things_are_told(everyone: list[Communicator], calls: Calls) -> None:
    errors = together(everyone, lambda each: error_of(lambda: calls[each.rank > 0](each)))
    assert [type(error) for error in errors] == [MismatchError] * SIZE


EYE = torch.eye(3)
MEMORY = torch.ones(8)
RESIDUALS: list[tuple[Any, dict[str, Any], str]] = [
    (torch.ones(4), {"residual": torch.ones(3)}, r"residual is float32 of shape \(3,\): .* of 4 elements"),
    (torch.ones(4), {"residual": torch.ones(4).double()}, "residual is float64 of shape"),
    (torch.ones(4), {"residual": torch.ones(8)[::2]}, r"residual is float32 of shape \(4,\): .*contiguous"),
    (torch.ones(4), {"residual": torch.ones(4), "op": "max"}, "residual with op='max', which loses nothing"),
    (torch.ones(4).int(), {"residual": torch.ones(4)}, "residual with int32, which loses nothing"),
    (torch.ones(4).to_sparse(), {"residual": torch.ones(4)}, "residual of a tensor that is sent by elements"),
    (torch.ones(4), {"residual": torch.ones(4), "layout": "elements"}, "residual of a tensor that is sent by elements"),
    (MEMORY[:4], {"residual": MEMORY[3:7]}, "residual shares memory with tensor"),
    (MEMORY[::2], {"residual": MEMORY[3:7]}, "residual shares memory with tensor"),
    (MEMORY.numpy()[:4], {"residual": MEMORY.numpy()[:4]}, "residual shares memory with tensor"),
]


def with_column(index: int) -> torch.Tensor:
    """Return a sparse tensor of 4 by 10 with a value in this column. torch does not check the column."""
    indices = torch.tensor([[0, 1], [1, index]])
    return torch.sparse_coo_tensor(indices, torch.ones(2), (4, 10), check_invariants=False)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda each: each.broadcast(np.ones(3), 3), ValueError, r"src=3: must be an integer from 0 to 2"),
        (lambda each: each.reduce(np.ones(3, "f"), -1), ValueError, r"dst=-1: must be an integer from 0 to 2"),
        (lambda each: each.broadcast(np.array([each]), 0), Unsupported, "dtype object: Python objects and structures"),
        (lambda each: each.all_gather(np.zeros(2, "i4,f4")), Unsupported, "Python objects and structures"),
        (lambda each: each.broadcast([1.0], 0), TypeError, "is a list: accepted are numpy.ndarray and torch.Tensor"),
        (lambda each: each.all_gather(1.0), TypeError, "is a float: accepted are numpy.ndarray and torch.Tensor"),
        (lambda each: each.reduce_scatter(np.ones((2, 2), "f")), ValueError, r"shape \(2, 2\): .* number of ranks, 3"),
        (lambda each: each.reduce_scatter(np.ones((), "f")), ValueError, r"shape \(\): .* number of ranks, 3"),
        (lambda each: each.reduce_scatter(np.ones((3, 2))), Unsupported, "float64"),
        (lambda each: each.all_gather(np.ones(2), out=np.ones((2, 3))), ValueError, r"out is .* must be .*\(3, 2\)"),
        (lambda each: each.all_gather(np.ones(2), out=np.ones((3, 2), "f")), ValueError, r"out is float32 of shape"),
        (lambda each: each.all_gather(np.ones(2), out=[]), TypeError, r"out is a list|is a list"),
        (lambda each: each.allreduce(np.ones(3, complex), "max"), Unsupported, "op='max' of complex128"),
        (lambda each: each.allreduce(np.ones(3), "max", factor=2), ValueError, "factor=2 with op='max'"),
        (lambda each: each.allreduce(np.ones(3, np.int32), factor=2), Unsupported, "factor=2 of int32"),
        (
            lambda each: each.allreduce(np.ones(3, "f"), factor=np.inf),
            ValueError,
            "factor=inf: must be a number that float32 has",
        ),
        (lambda each: each.allreduce(np.ones(3, "f"), "product"), ValueError, "accepted are sum, average, max, min"),
        (lambda each: each.allreduce(np.ones(3, "f"), ["sum"]), ValueError, "accepted are sum, average, max, min"),
        (lambda each: each.allreduce(np.ones(3, "f"), layout=["blocks"]), ValueError, "accepted are auto, blocks"),
        (lambda each: each.allreduce(np.ones(3, "f"), wire=["int8"]), ValueError, "accepted are auto, int32"),
        (lambda each: each.allreduce(np.ones(3, np.int32), "average"), Unsupported, "op='average' of int32"),
        (lambda each: each.allreduce(np.ones(3)), Unsupported, "float64"),
        (
            lambda each: each.allreduce(torch.ones(4), "max", layout="elements"),
            ValueError,
            "op='max' of a tensor sent by",
        ),
        (lambda each: each.allreduce(EYE.to_sparse(), "max"), ValueError, "op='max' of a sparse tensor"),
        (lambda each: each.allreduce(EYE.double().to_sparse()), Unsupported, "float64: supported are"),
        (lambda each: each.allreduce(EYE.to_sparse_csr()), TypeError, "layout torch.sparse_csr: accepted"),
        (lambda each: each.broadcast(EYE.to_sparse(), 0), TypeError, "layout torch.sparse_coo: accepted"),
        (
            lambda each: each.allreduce(with_column(12)),
            ValueError,
            "indices from 1 to 12 in dimension 1: accepted are 0",
        ),
        (
            lambda each: each.allreduce(with_column(-1)),
            ValueError,
            "indices from -1 to 1 in dimension 1: accepted are 0",
        ),
        *[
            (lambda each, of=of, options=options: each.allreduce(of, **options), ValueError, message)
            for of, options, message in RESIDUALS
        ],
        (lambda each: each.allreduce(np.ones(3, "f"), timeout=0), ValueError, "timeout=0: must be a positive number"),
    ],
)
def test_wrong_calls_are_refused_and_change_nothing(
    everyone: list[Communicator], call: Any, kind: type[Exception], message: str
) -> None:
    for each in everyone:
        with pytest.raises(kind, match=message):
            call(each)
    for result in together(everyone, lambda each: each.allreduce(np.ones(3, "f"))):
        assert result.tolist() == [3, 3, 3]


def test_what_cannot_be_written_to_may_be_given(everyone: list[Communicator]) -> None:
    frozen = np.arange(5.0)
    frozen.flags.writeable = False
    arrays = [frozen, np.zeros(5), np.zeros(5)]
    together(everyone, lambda each: each.broadcast(arrays[each.rank], 0))
    assert arrays[2].tolist() == arrays[0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        everyone[1].broadcast(frozen, 0)


def mapped(values: npt.NDArray[Any], path: Path, kind: str) -> Any:
    """Return the same values in read-only memory, where a write is a segmentation fault.

    An array knows that it is read-only, and a tensor does not.
    """
    values.tofile(path)
    array = np.memmap(path, values.dtype, "r", shape=values.shape)
    if kind == "numpy":
        return array
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: that it does not know it
        return torch.from_numpy(array)


EVERYONE = tuple(range(SIZE))
READ_BY = {
    "reduce": (1, 2), "reduce max": (1, 2), "reduce_scatter": EVERYONE, "reduce_scatter min": EVERYONE,
    "broadcast": (1,), "all_gather": EVERYONE,
}  # fmt: skip
"""The ranks that only give their tensor."""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("call", READ_BY)
def test_inputs_may_be_files_that_are_mapped_read_only(
    trio: list[Communicator], call: str, kind: str, tmp_path: Path
) -> None:
    values = np.arange(SIZE * 400, dtype=np.float32).reshape(SIZE, 400)
    values[0, 64:128] = -0.0
    inputs = [mapped(values, tmp_path / str(rank), kind) for rank in range(SIZE)]
    together(trio, lambda each: CALLS[call](each, inputs[each.rank] + (each.rank not in READ_BY[call])))
    for each in inputs:
        assert bits(np.asarray(each)) == values.tobytes()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_source_of_a_broadcast_is_not_written_to(trio: list[Communicator], kind: str) -> None:
    """It is not written to even with its own bits: here the sum with other ranks' values would show a write."""
    arrays: list[Any] = [np.full(200, 1 << rank, np.int32) for rank in range(SIZE)]
    if kind == "torch":
        arrays = [torch.from_numpy(array) for array in arrays]

    def as_if_source(_: Group, array: Any) -> Plan[Any]:
        staging = Buffer(array, None)
        staging.work[:] = 1 << 10
        return moves.move("broadcast from 0", staging, array, staging.write_back)

    together(
        trio,
        lambda each: (
            each.broadcast(arrays[0], 0) if each.rank == 0 else each.start(20, as_if_source, arrays[each.rank]).wait()
        ),
    )
    assert [sorted(set(array.tolist())) for array in arrays] == [[1], [2049], [2049]]


def refuse(*_: object, **__: object) -> None:
    raise CollectiveTimeout("before it began")


def end(*_: object, on_end: Callable[[BaseException], None], **__: object) -> None:
    on_end(ValueError("too long"))


@pytest.mark.parametrize("submit", [refuse, end])
@pytest.mark.parametrize("call", [name for name in CALLS if name != "elements"])
def test_what_the_engine_does_not_take_leaves_inputs_as_they_were(
    everyone: list[Communicator], call: str, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in everyone:
        for begin in ("submit", "start"):
            monkeypatch.setattr(each._engine, begin, submit)
        array = np.arange(SIZE * 4, dtype=np.float32).reshape(SIZE, 4)
        with pytest.raises((CollectiveTimeout, ValueError), match=r"before it began|too long"):
            CALLS[call].start(each, array).wait()
        assert array.tolist() == np.arange(SIZE * 4).reshape(SIZE, 4).tolist()


def test_a_broadcast_that_failed_leaves_receivers_as_they_were(trio: list[Communicator]) -> None:
    def work(each: Communicator) -> list[float]:
        if each.rank == 2:
            return []
        array = np.full(200, each.rank + 1.0)
        with pytest.raises((CollectiveTimeout, JobAborted), match="did not end within"):  # the other's
            each.broadcast(array, 0, timeout=0.5)
        return sorted(set(array.tolist()))

    assert together(trio, work) == [[1.0], [2.0], []]


PAIRS = ["allreduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "barrier"]


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_of_a_collective_have_one_signature(name: str) -> None:
    one, other = (inspect.signature(getattr(Communicator, each)) for each in (name, f"{name}_async"))
    assert one.parameters == other.parameters
    assert other.return_annotation == f"Handle[{one.return_annotation}]"


def test_every_collective_has_both_forms() -> None:
    assert [name for name in vars(Communicator) if f"{name}_async" in vars(Communicator)] == PAIRS
    assert sum(name.endswith("_async") for name in vars(Communicator)) == len(PAIRS)
