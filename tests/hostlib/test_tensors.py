# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.halves import narrowed, widened
from p4reduce.protocol.numbers import SUPPORTED
from p4reduce.tensors import staging as stagings
from p4reduce.tensors.sparse import SparseTensor
from p4reduce.tensors.spec import HALVES, describe
from p4reduce.tensors.staging import Buffer, Staging, View, words, zeros

torch = pytest.importorskip("torch", reason="needs torch")

FACTOR = 3  # exact in every dtype for the small integers that the tests use
SMALL = st.integers(-8, 8)
NUMPY_DTYPES = ["float32", "float16", "int32", ">f4", ">i4", ">f2"]
TORCH_DTYPES = ["float32", "float16", "bfloat16", "int32"]


def numbers(tensor: Any, *, copy: bool = False, halves: bool = False) -> Staging:
    """Return the staging that a sum makes of the tensor. halves: keep 16-bit floats as they are."""
    spec = describe(tensor)
    wide = spec.work_dtype
    return stagings.numbers(tensor, spec, HALVES.get(spec.dtype, wide) if halves else wide, copy=copy)


def reduce(tensor: object, *, halves: bool = False) -> npt.NDArray[Any]:
    """Reduce as if `FACTOR` ranks had the same tensor. Returns the values that the protocol got, floats as float32."""
    staging = numbers(tensor, halves=halves)
    given_work = widened(staging.work).copy()
    assert staging.work.ndim == 1
    assert staging.work.flags.c_contiguous
    assert staging.work.dtype in (SUPPORTED if halves else (np.float32, np.int32))
    staging.work[:] = narrowed(given_work * given_work.dtype.type(FACTOR), staging.work.dtype)
    staging.write_back()
    return given_work


@st.composite
def views(draw: st.DrawFn) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return an array of small integers, and a view of it: transposed, stepped, reversed, cut or none of it."""
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shape = draw(st_np.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    base = np.array(draw(st_np.arrays(np.int8, shape, elements=SMALL))).astype(dtype)
    view = base.transpose(draw(st.permutations(range(base.ndim))))
    if view.ndim:
        view = view[draw(st_np.basic_indices(view.shape, allow_ellipsis=True))]
    return base, view if isinstance(view, np.ndarray) else base


@given(views(), st.booleans())
def test_any_numpy_view_is_reduced_in_place(
    base_and_view: tuple[npt.NDArray[Any], npt.NDArray[Any]], halves: bool
) -> None:
    base, view = base_and_view
    before = view.copy()
    expected = base.copy()
    untouched = np.ones(base.shape, bool)
    # Writing through the view shows which elements of the base it has.
    marks = base.copy()
    view[...] = 100
    untouched = base != 100
    base[...] = marks
    given_work = reduce(view, halves=halves)
    np.testing.assert_array_equal(given_work, before.reshape(-1).astype(given_work.dtype))
    np.testing.assert_array_equal(view, before * FACTOR)
    np.testing.assert_array_equal(base[untouched], expected[untouched])


@given(views(), st.sampled_from(TORCH_DTYPES), st.booleans(), st.booleans())
def test_any_torch_view_is_reduced_in_place(
    base_and_view: tuple[npt.NDArray[Any], npt.NDArray[Any]], dtype: str, requires_grad: bool, halves: bool
) -> None:
    _, view = base_and_view
    # The tensor has the view's shape, and its strides are in the order of the view's. None of them is negative.
    order = sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis]))
    base = torch.from_numpy(np.array(view.transpose(order), "int32", order="C")).to(getattr(torch, dtype))
    tensor = base.permute([order.index(axis) for axis in range(view.ndim)])
    if requires_grad and tensor.is_floating_point():
        tensor.requires_grad_()
    before = tensor.detach().clone()
    given_work = reduce(tensor, halves=halves)
    np.testing.assert_array_equal(given_work, before.reshape(-1).to(torch.float32).numpy())
    assert torch.equal(tensor.detach(), before * FACTOR)
    assert tensor.dtype == before.dtype


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_contiguous_memory_is_reduced_where_it_is(dtype: str) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    for tensor in (array, torch.from_numpy(array)):
        assert np.shares_memory(numbers(tensor, halves=True).work, array)
        assert type(numbers(tensor, halves=True)) is type(words(tensor, describe(tensor))) is View
        for staging in (numbers(tensor, copy=True), zeros(tensor)):
            assert type(staging) is Buffer
            assert not np.shares_memory(staging.work, array)
    assert not np.shares_memory(numbers(array.T, halves=True).work, array), "column-major is another order of elements"


def test_contiguous_bfloat16_is_reduced_where_it_is() -> None:
    tensor = torch.tensor([1.0, -2.5], dtype=torch.bfloat16)
    assert numbers(tensor, halves=True).work.ctypes.data == tensor.data_ptr()
    assert widened(numbers(tensor, halves=True).work).tolist() == [1.0, -2.5]


@given(st.lists(st.integers(0, 0xFFFF), min_size=1), st.sampled_from([torch.float16, torch.bfloat16]))
def test_16_bits_are_carried_exactly(bits: list[int], dtype: torch.dtype) -> None:
    tensor = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(dtype)
    before = tensor.clone()
    staging = numbers(tensor)
    np.testing.assert_array_equal(staging.work, before.float().numpy())
    staging.write_back()
    known = ~before.isnan()
    assert torch.equal(tensor.view(torch.int16)[known], before.view(torch.int16)[known])


def test_bfloat16_of_numpy_is_carried() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
    array = np.array([1, 2, 3], ml_dtypes.bfloat16)
    reduce(array)
    assert array.astype(np.float32).tolist() == [3, 6, 9]
    assert np.shares_memory(numbers(array, halves=True).work, array)
    reduce(array[::-1], halves=True)
    assert array.astype(np.float32).tolist() == [9, 18, 27]


def test_memory_of_dtypes_that_no_buffer_can_have_is_found() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
    for dtype in (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, "datetime64[s]"):
        array = np.zeros(4, dtype)
        assert describe(array).address == array.ctypes.data


def test_results_are_rounded_to_nearest_even() -> None:
    for dtype, ties in (("float16", [2049.0, 2051.0]), ("bfloat16", [257.0, 259.0])):
        tensor = torch.zeros(2, dtype=getattr(torch, dtype))
        staging = numbers(tensor)
        staging.work[:] = ties
        staging.write_back()
        assert tensor.tolist() == [ties[0] - 1, ties[1] + 1]


@pytest.mark.parametrize("halves", [False, True])
def test_a_bfloat16_nan_has_the_same_bits_whatever_the_memory(halves: bool) -> None:
    """The bits do not depend on the dtype of the sum either, in which ranks may differ."""
    for tensor in (torch.zeros(70, dtype=torch.bfloat16), torch.zeros(70, 2, dtype=torch.bfloat16)[:, 0]):
        tensor[::3] = math.nan
        staging = numbers(tensor, halves=halves)
        staging.work[:] = narrowed(np.where(np.arange(70) % 3, np.float32(1), np.float32(math.nan)), staging.work.dtype)
        staging.write_back()
        bits = tensor.contiguous().view(torch.int16)
        assert bits[::3].unique().tolist() == [0x7FC0]
        assert tensor.nan_to_num(1.0).unique().tolist() == [1]


@pytest.mark.parametrize("width", [1, 70])
def test_a_bfloat16_nan_has_the_same_bits_in_a_sparse_tensor(width: int) -> None:
    tensor = torch.zeros(70, width, dtype=torch.bfloat16).to_sparse(1)
    values = np.full((70, width), math.nan, np.float32)
    values[::3] = 1
    SparseTensor(tensor, describe(tensor, sparse=True)).write_back(np.arange(70), values)
    bits = tensor.to_dense().view(torch.int16)
    assert bits[1::3].unique().tolist() == bits[2::3].unique().tolist() == [0x7FC0]
    assert tensor.to_dense()[::3].unique().tolist() == [1]


def test_a_sum_beyond_float16_is_infinite() -> None:
    for tensor in (np.array([60000], np.float16), torch.tensor([60000], dtype=torch.float16)):
        reduce(tensor)
        assert tensor.tolist() == [float("inf")]


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [("float64", r"; model\.float\(\) makes a.*"), ("int64", r"; where the values fit, tensor\.int\(\).*")]
    + [(dtype, "$") for dtype in ("uint8", "bool", "complex64", "int16")],
)
def test_other_dtypes_are_refused_by_name(dtype: str, advice: str) -> None:
    message = f"dtype {dtype}: supported are float32, float16, bfloat16, int32{advice}"
    with pytest.raises(UnsupportedDtype, match=message):
        numbers(np.zeros(3, dtype))
    with pytest.raises(UnsupportedDtype, match=message):
        numbers(torch.zeros(3, dtype=getattr(torch, dtype)))


def test_what_cannot_be_written_to_is_refused() -> None:
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (2, 3), (0, 4))
    for tensor, message in (
        (frozen, "read-only"),
        (overlapping, r"shape \(2, 3\) has an expanded dimension"),
        (torch.zeros(3, 1).expand(3, 2), r"shape \(3, 2\) has an expanded dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            describe(tensor).check_writable(tensor)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], r"is a list: accepted are numpy.ndarray and torch.Tensor"),
        (np.float32(1), r"NumPy scalar .* pass a 0-d array"),
        (np.ma.MaskedArray(np.zeros(3, np.float32)), "masked array"),
        (torch.zeros(3).to_sparse(), r"layout torch.sparse_coo"),
        (torch.zeros(3, device="meta"), "on device meta"),
    ],
)
def test_what_is_no_dense_cpu_tensor_is_refused(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        numbers(value)


def test_matrices_and_parameters_are_tensors_too() -> None:
    matrix = np.array([[1, 2], [3, 4]], np.float32).view(np.matrix)
    reduce(matrix)
    assert matrix.tolist() == [[3, 6], [9, 12]]
    parameter = torch.nn.Parameter(torch.ones(2))
    reduce(parameter)
    assert parameter.tolist() == [3, 3]
    assert parameter.grad_fn is None


def test_negated_views_are_read_as_what_they_show() -> None:
    tensor = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert tensor.is_neg()
    given_work = reduce(tensor)
    assert given_work.tolist() == [-2, -4]
    assert tensor.tolist() == [-6, -12]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd_notices_that_a_saved_tensor_was_overwritten(dtype: torch.dtype) -> None:
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    saved = torch.ones(3, dtype=dtype)
    loss = (weight * saved).sum()
    reduce(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("within", [True, False])
def test_tensors_that_came_to_be_in_inference_are_written_to(within: bool) -> None:
    """Such tensors have no version counter."""
    with torch.inference_mode():
        tensors = [torch.ones(3), torch.ones(3, dtype=torch.float16), torch.ones(4, 4).t()[0]]
    with torch.inference_mode(within):
        for tensor in tensors:
            reduce(tensor)
    assert all(tensor.tolist() == [3] * tensor.numel() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64])
def test_one_element_is_contiguous_whatever_its_stride(dtype: torch.dtype) -> None:
    tensor = torch.full((1, 4), 5, dtype=dtype)[:, 0]
    assert tensor.stride() == (4,)
    staging = words(tensor, describe(tensor))
    expected = np.array(tensor.numpy())
    assert staging.work.tobytes()[: expected.nbytes] == expected.tobytes()
    staging.work[:] = 0
    staging.write_back()
    assert tensor.tolist() == [0]
