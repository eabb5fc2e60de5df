# SPDX-License-Identifier: Apache-2.0
"""The forms that sums of floats travel in, as a user asks for them, over a model of the switch with both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce import Communicator, MismatchError, UnsupportedDtype
from p4reduce.collectives import reductions
from p4reduce.collectives.plan import Collective, Group
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.numbers import WIRES, Wire, reference_allreduce, values_per_word
from p4reduce.tensors.spec import describe
from tests.support.hostlib.in_process import Join, error_of, together

SIZE = 3
BLOCK = 64


def gradients(size: int = 5000) -> list[torch.Tensor]:
    """Return a gradient for each rank, in which some blocks are zero."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(SIZE, size, generator=generator) * 10.0 ** torch.randint(-6, 6, (size,), generator=generator)
    rows[:, BLOCK * 4 : BLOCK * 12] = 0
    return list(rows)


def awkward(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return an awkward tensor for each rank.

    They have sums beyond float16, subnormals, blocks of -0, values that are not finite, and a ragged end.
    """
    tensors = [(each / 1e3).to(dtype) for each in gradients(3001)]
    tensors[0][700], tensors[1][1300], tensors[2][2000] = float("nan"), float("inf"), float("-inf")
    for tensor in tensors:
        tensor[4 * BLOCK : 8 * BLOCK] = -0.0
        tensor[2400:2450] = 30000
        tensor[2700:] *= torch.finfo(dtype).smallest_normal
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wire", WIRES)
def test_sums_have_the_bits_of_the_reference(trio: list[Communicator], wire: Wire, dtype: torch.dtype) -> None:
    """Sums of 16-bit floats have the bits of a reference that reduces them as float32 and rounds.

    They are reduced in place, in a copy if they are strided, and as float32 if there is a residual.
    """
    given = awkward(dtype)
    float32 = [each.float().numpy() for each in given]
    name = f"{str(dtype).removeprefix('torch.')}{'' if wire == 'int32' else f':{wire}'}"
    ways: list[tuple[str, Callable[[Communicator], torch.Tensor]]] = [
        ("sum", lambda each: each.allreduce(given[each.rank].clone(), wire=wire)),
        ("average", lambda each: each.allreduce(given[each.rank].clone(), "average", wire=wire)),
        ("average", lambda each: each.allreduce(given[each.rank].repeat(2, 1).t()[:, 0], "average", wire=wire)),
        ("average", lambda each: each.allreduce(given[each.rank].clone(), "average", wire=wire,
                                                residual=torch.zeros(3001))),
        ("reduce to 1 sum", lambda each: each.reduce(given[each.rank].clone(), 1, wire=wire)),
    ]  # fmt: skip
    for counter, (op, way) in enumerate(ways):
        result = together(trio, way)[1]
        number = fingerprint(counter, name, op, 3001)
        with np.errstate(over="ignore"):
            expected = torch.from_numpy(
                reference_allreduce(float32, "avg" if op == "average" else "sum", wire=wire, operation=number)
            ).to(dtype)
        assert result.dtype == dtype
        numbers = ~expected.isnan()
        assert torch.equal(~result.isnan(), numbers)
        assert not numbers.all()
        as_words = torch.int32 if dtype == torch.float32 else torch.int16
        assert torch.equal(result.view(as_words)[numbers], expected.view(as_words)[numbers]), op


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_reduced_where_they_are(dtype: torch.dtype) -> None:
    def plan_of(tensor: torch.Tensor, factor: float = 1.0) -> Operation:
        operation = reductions.allreduce(Group(0, 2), tensor, describe(tensor), Collective(factor=factor)).operation
        assert operation is not None
        return operation

    tensor = torch.ones(6, dtype=dtype)
    operation = plan_of(tensor)
    assert operation.data.ctypes.data == tensor.data_ptr()
    assert operation.numbers == f"{dtype}:int16".removeprefix("torch.")
    assert plan_of(tensor[::2]).data.dtype.itemsize == 2
    assert plan_of(tensor, 3.0).data.dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "form"), [(torch.float32, "int32"), (torch.float16, "int16"), (torch.bfloat16, "int16")], ids=str
)
def test_what_has_sixteen_bits_takes_sixteen(trio: list[Communicator], dtype: torch.dtype, form: Wire) -> None:
    def auto(each: Communicator) -> tuple[int, int]:
        before = each.stats().blocks_sent
        each.allreduce(torch.ones(BLOCK * 16, dtype=dtype))
        return each.values_per_block(torch.ones(1, dtype=dtype)), each.stats().blocks_sent - before

    per_word = values_per_word(form)
    assert together(trio, auto) == [(BLOCK * per_word, 16 // per_word)] * SIZE


def test_integers_travel_as_they_are(trio: list[Communicator]) -> None:
    results = together(
        trio, lambda each: each.allreduce(torch.tensor([2**30, each.rank], dtype=torch.int32), wire="int8")
    )
    assert all(result.tolist() == [3 * 2**30 - 2**32, 3] for result in results)


def test_every_collective_that_adds_takes_a_form(trio: list[Communicator]) -> None:
    def each_of_them(each: Communicator) -> list[Any]:
        ones = torch.ones(SIZE, 200)
        return [
            each.reduce(ones.clone(), 0, wire="int8")
            if each.rank == 0
            else each.reduce(ones.clone(), 0, wire="int8") * 3,
            each.reduce_scatter(ones, wire="int16"),
            each.allreduce(torch.sparse_coo_tensor([[each.rank]], [[1.0] * 200], (3, 200)), wire="int16").to_dense(),
        ]

    for reduced, part, rows in together(trio, each_of_them):
        assert reduced == pytest.approx(3, abs=3 * 2**-5 * 2)
        assert torch.allclose(part, torch.full((200,), 3.0), atol=3 * 2**-13 * 2)
        assert torch.allclose(rows, torch.ones(3, 200), atol=2**-12)


def test_ranks_that_take_different_forms_are_told(trio: list[Communicator]) -> None:
    errors = together(trio, lambda each: error_of(lambda: each.allreduce(torch.ones(500), wire=WIRES[each.rank > 0])))
    assert all(isinstance(error, MismatchError) for error in errors)


def test_a_form_can_be_the_environments_the_communicators_or_the_calls(
    monkeypatch: pytest.MonkeyPatch, join: Join
) -> None:
    monkeypatch.setenv("P4REDUCE_WIRE", "int16")
    value = torch.zeros(1)
    for options, expected in ({}, 128), ({"wire": "int8"}, 256):
        [alone] = join(1, **options)
        with alone:
            assert alone.values_per_block(value) == expected
            assert alone.values_per_block(value, "int32") == 64
            with pytest.raises(ValueError, match="wire='int4': accepted are auto, int32, int16, int8"):
                alone.allreduce(value, wire="int4")  # type: ignore[arg-type]
            with pytest.raises(UnsupportedDtype, match="tensor has dtype float64: supported are"):
                alone.values_per_block(value.double())
    monkeypatch.setenv("P4REDUCE_WIRE", "narrow")
    with pytest.raises(ValueError, match="P4REDUCE_WIRE='narrow'"):
        Communicator(rank=0, world_size=1)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_arrived_and_the_residuals_are_what_was_given(
    trio: list[Communicator], wire: Wire, dtype: torch.dtype
) -> None:
    given = [each.to(dtype) for each in gradients()]

    def reduce(each: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        left = torch.zeros(5000)
        return each.allreduce(given[each.rank].float().clone(), wire=wire, residual=left), left

    results = together(trio, reduce)
    magnitudes = sum(one.double().abs() + left.double().abs() for one, (_, left) in zip(given, results, strict=True))
    sent = sum(one.double() - left.double() for one, (_, left) in zip(given, results, strict=True))
    for result, left in results:
        # Each residual is rounded to float32, and so is the sum.
        assert torch.all((result.double() - sent).abs() <= 2**-22 * magnitudes)
        assert left[BLOCK * 8 : BLOCK * 12].count_nonzero() == 0  # of which nothing was sent
    if wire != "int32":
        assert all(left.count_nonzero() > 1000 for _, left in results)


def test_a_residual_is_of_a_products_values_and_zero_where_nothing_is_finite(trio: list[Communicator]) -> None:
    def reduce(each: Communicator) -> torch.Tensor:
        values, left = torch.full((300,), 1 / 3), torch.ones(300)
        values[260] = float("inf")
        each.allreduce(values, factor=2.0, wire="int16", residual=left)
        assert values[:256].isfinite().all()
        assert values[256:].isnan().all()
        return left

    for left in together(trio, reduce):
        assert 0 < float(left[:256].abs().max()) < 2**-12
        assert left[256:].count_nonzero() == 0
