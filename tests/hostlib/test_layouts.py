# SPDX-License-Identifier: Apache-2.0
"""Dense tensors by elements: the bits of the reduction of those that anyone has; and when that is chosen."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4reduce import Communicator, MismatchError
from p4reduce.collectives import choice, sparse
from p4reduce.collectives.choice import LEAST, Choices, Costs, Estimate, Way
from p4reduce.collectives.sites import MOST_SITES, Key, Sites
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.submit.submission import Submission
from p4reduce_bench.analyze.forms import forms
from tests.support.hostlib.in_process import Join, error_of, together

SIZE = 3
NUMEL = 40_000
WIRE = Path(__file__).parents[2] / "docs" / "wire.md"
BLOCKS_COST_LESS = Estimate(Way(100, 4e6, 0.16), Way(1000, 5e6, 0.2), 200_000_000)


@pytest.fixture(params=[sparse.INLINE, 0], ids=["inline", "three operations"])
def trio(join: Join, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Communicator]:
    monkeypatch.setattr(sparse, "INLINE", request.param)
    return join(SIZE)


def scattered(density: float, numel: int = NUMEL, *, seed: int = 1) -> list[torch.Tensor]:
    """Return a tensor for each rank, with a random choice of elements that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(numel, generator=generator) * (torch.rand(numel, generator=generator) < density)
        for _ in range(SIZE)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    numel=st.integers(0, 3000),
    density=st.floats(0, 1),
    op=st.sampled_from(["sum", "average"]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    seed=st.integers(0, 1000),
)
def test_the_sum_has_the_bits_of_the_dense_one(
    trio: list[Communicator], numel: int, density: float, op: Any, dtype: str, seed: int
) -> None:
    given_ = [each.to(getattr(torch, dtype)) for each in scattered(density, numel, seed=seed)]
    union = torch.stack(given_).ne(0).any(0)
    wire: Any = "int32" if dtype == "float32" else "int16"
    some = reference_allreduce(
        [each[union].float().numpy() for each in given_], "avg" if op == "average" else "sum", wire=wire
    )
    expected = torch.zeros(numel, dtype=given_[0].dtype)
    expected[union] = torch.from_numpy(some).to(expected.dtype)
    results = together(trio, lambda each: each.allreduce(given_[each.rank], op, layout="elements"))
    for tensor, result in zip(given_, results, strict=True):
        assert result is tensor
        assert torch.equal(result.nan_to_num(), expected)


def test_other_tensors(trio: list[Communicator]) -> None:
    def each_kind(each: Communicator) -> list[Any]:
        strided = torch.zeros(30, 40).t()
        strided[3, 4] = each.rank + 1
        array = np.zeros((5, 7), np.int32, order="F")
        array[each.rank, 2] = 2**31 - 1
        array[4, 4] = 2**30
        wide = torch.zeros(2000)
        wide[:2] = torch.tensor([float("inf"), float("nan")])
        return [
            each.allreduce(tensor, layout="elements")
            for tensor in (strided, array, wide, torch.tensor(2.0), torch.full((3,), 0.5))
        ]

    for strided, array, wide, scalar, dense in together(trio, each_kind):
        assert strided.nonzero().tolist() == [[3, 4]]
        assert strided[3, 4] == 6
        assert array[:, 2].tolist() == [2**31 - 1] * 3 + [0, 0]
        assert array[4, 4] == 3 * 2**30 - 2**32
        assert wide[:2].isnan().all()
        assert not wide[2:].any()
        assert scalar == 6
        assert dense.tolist() == [1.5] * 3


def test_factors_and_inputs_that_stay(trio: list[Communicator]) -> None:
    given_ = [torch.zeros(1000) for _ in trio]
    for each in given_:
        each[5] = 2.0
    together(trio, lambda each: each.allreduce(given_[each.rank], factor=0.5, layout="elements"))
    assert all(each[5] == 3 and each.count_nonzero() == 1 for each in given_)
    errors = together(
        trio, lambda each: error_of(lambda: each.allreduce(given_[each.rank][: 1000 - each.rank], layout="elements"))
    )
    assert all(isinstance(error, MismatchError) for error in errors)
    assert all(each[5] == 3 and each.count_nonzero() == 1 for each in given_)


def sent(trio: list[Communicator], tensors: list[torch.Tensor], **options: Any) -> tuple[int, list[torch.Tensor]]:
    """Call an allreduce, and return the number of operations that it takes, and its results."""
    before = trio[0].stats().operations
    results = together(trio, lambda each: each.allreduce(tensors[each.rank].clone(), **options))
    return trio[0].stats().operations - before, results


def test_scattered_zeros_go_by_elements_from_the_second_call_on(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LINK", "1mbit")  # so that bytes decide
    trio = join(SIZE)
    few, many = scattered(0.02), scattered(1.0)
    blocks, by_blocks = sent(trio, few)
    elements, by_elements = sent(trio, few)
    assert (blocks, elements) == (1, 3)
    torch.testing.assert_close(by_elements, by_blocks)
    # In the first call the ranks choose blocks by its header. Later calls have none.
    assert [sent(trio, many)[0] for _ in range(3)] == [2, 1, 1]
    assert sent(trio, many, layout="elements")[0] == 3
    assert [sent(trio, few)[0] for _ in range(3)] == [1, 3, 3]
    # Others have a memory of their own, and what is asynchronous none.
    assert sent(trio, [each[:-1] for each in few])[0] == 1
    handles = together(trio, lambda each: each.allreduce_async(few[each.rank].clone()))
    assert all(torch.equal(handle.result(), by_blocks[0]) for handle in handles)
    small = scattered(0.02, 1000)
    assert [sent(trio, small)[0] for _ in range(3)] == [1, 1, 1]


def test_int8_rounds_by_another_chance_for_other_values(trio: list[Communicator]) -> None:
    """Or what is lost of a value that stays would be lost each time."""
    tensors = torch.zeros(40, NUMEL)
    tensors[:, :100:3] = torch.linspace(0.1, 1, 34)
    tensors[:, -1] = torch.arange(1, 41) / 100
    results = [
        together(trio, lambda each, one=one: each.allreduce(one.clone(), wire="int8", layout="elements"))
        for one in tensors
    ]
    assert all(torch.equal(result, of_one[0]) for of_one in results for result in of_one)
    mean = torch.stack([of_one[0][:100:3] for of_one in results]).mean(0)
    assert (mean - SIZE * tensors[0, :100:3]).abs().max() < 0.03


def test_sites_of_long_ago_are_forgotten() -> None:
    choices = Choices()
    scattered_sum = np.zeros(1 << 10, np.float32)
    scattered_sum[::32] = 1.0
    for site in ("early", "late"):
        choices.came(site, choices[site], scattered_sum, 64, 1)
    for size in range(choice.MOST_SITES - 1):
        assert not choices[size].asks
        assert choices["late"].asks
    assert not choices["early"].asks
    assert len(choices._sites.items()) == choice.MOST_SITES


def test_a_link_is_what_the_user_says_or_the_interface(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    [alone] = join(1)
    with alone:
        assert alone._allreduce.link == 0  # loopback has no rate
    monkeypatch.setenv("P4REDUCE_LINK", "200mbit")
    for given_, expected in (None, 2 * 10**8), ("2.5Gbit", 25 * 10**8):
        [alone] = join(1, link=given_)
        with alone:
            assert alone._allreduce.link == expected
    for wrong in ("fast", "100", "1bit", "-1gbit", "10000000000gbit", f"{'9' * 400}gbit"):
        with pytest.raises(ValueError, match=f"link='{wrong}': accepted are rates such as"):
            join(1, link=wrong)


def test_costs_are_bytes() -> None:
    # 8 ranks of 1 % at random, in blocks of 64. Numbers have 8.56 bits, the union 7.73 times the elements of a rank.
    size, count = 1 << 22, (1 << 22) // 100
    costs = Costs.of_counts(size, 64, 1, [count] * 8, [round(size / 64 * (1 - 0.99**64))] * 8)
    assert costs.elements / count == pytest.approx(8 * 8.56 / 8 + 4 * 7.73, rel=0.01)
    assert costs.blocks / count == pytest.approx(398, rel=0.01)
    narrow = Costs.of_counts(size, 128, 2, [count] * 8, [round(size / 128 * (1 - 0.99**128))] * 8)
    assert narrow.elements / count == pytest.approx(8 * 8.56 / 8 + 2 * 7.73, rel=0.01)
    assert Costs.of_counts(0, 64, 1, [0], [0]) == Costs(0.0, 0.0, 0, 0, 0)


def test_stats_say_how_sums_went_and_why(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LINK", "1mbit")
    trio = join(SIZE)
    few, many = scattered(0.02), scattered(1.0)

    def after(tensors: list[torch.Tensor], **options: Any) -> list[Any]:
        """Call an allreduce on all ranks, and return each rank's statistics of the last call's site."""
        together(trio, lambda each: each.allreduce(tensors[each.rank].clone(), **options))
        return [each.stats().sites[-1] for each in trio]

    assert all(not each.stats().sites for each in trio)
    for site in after(few):
        assert (site.op, site.size, site.dtype, site.wire) == ("sum", NUMEL, "float32", "int32")
        assert (site.blocks, site.elements, site.layout, site.estimate) == (1, 0, "blocks", None)
        assert site.reason == "blocks: the first call: no sum is known yet"
        assert site.wire_reason == "the default of float32"
    costs = Costs.of_counts(
        NUMEL, 64, 1, [int(each.count_nonzero()) for each in few], [int(_blocks(each)) for each in few]
    )
    for site in after(few):
        assert (site.blocks, site.elements, site.layout) == (1, 1, "elements")
        assert site.estimate == costs.estimate([10**6] * SIZE)
        assert site.estimate.elements.count == sum(int(each.count_nonzero()) for each in few)
        assert site.reason == f"elements: {site.estimate}"
    for site in after(many):
        assert (site.blocks, site.elements, site.layout) == (2, 1, "blocks")
        assert site.reason == f"blocks: {site.estimate}"
    chosen = site.reason.removeprefix("blocks: ")
    for site in after(many):
        assert (site.blocks, site.elements) == (3, 1)
        assert site.reason == f"blocks: as the ranks chose when they last compared: {chosen}"
    after(many)
    [site] = {site.reason for site in after(many)}
    assert site.endswith("elements save nothing: 100% of its blocks' elements were not zero")
    [site] = {(site.reason, site.blocks, site.elements) for site in after(few, layout="elements", op="average")}
    assert site == ("elements: asked for", 0, 1)
    [site] = {(site.reason, site.wire_reason, str(site)) for site in after(few, layout="blocks", wire="int16")}
    assert site[:2] == ("blocks: asked for", "asked for")
    assert site[2] == "sum of 40000 float32, blocks: asked for; int16: asked for"
    [site] = {site.reason for site in after([each[:100] for each in few])}
    assert site == f"blocks: fewer than {LEAST} elements"
    for each in together(trio, lambda each: each.allreduce_async(torch.ones(LEAST, dtype=torch.float16)).result()):
        assert each.eq(SIZE).all()
    last = trio[0].stats().sites[-1]
    assert (last.reason, last.wire) == ("blocks: an asynchronous call does not choose", "int16")
    assert last.wire_reason == "the default of float16"
    assert len(trio[0].stats().sites) == 5
    json.dumps(asdict(trio[0].stats()))


def _blocks(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, 64).ne(0).any(1).sum()


def test_so_few_that_the_header_has_them(join: Join) -> None:
    trio = join(SIZE)
    tensor = np.zeros(NUMEL, np.float32)
    tensor[::4000] = 1
    together(trio, lambda each: [each.allreduce(tensor.copy()) for _ in range(3)])
    [site] = trio[1].stats().sites
    assert (site.blocks, site.elements) == (1, 2)
    assert site.reason == "elements: so few that all came with the header"
    assert site.estimate is not None
    assert site.estimate.link == 0
    assert "on links of unknown rate" in str(site.estimate)


@pytest.mark.parametrize("link", [10**6, 10**10])
def test_analyze_says_what_is_taken(join: Join, link: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LINK", f"{link // 1000}kbit")
    trio = join(SIZE)
    taken = set()
    for number, density in enumerate((0.0, 0.001, 0.02, 0.3, 0.7, 1.0)):
        for numel in (LEAST - 1, NUMEL + number):
            tensors = scattered(density, numel)
            made = forms(np.stack([(each != 0).numpy() for each in tensors]), link)
            for wire, form in made.items():
                options: dict[str, Any] = {"wire": wire}
                for _ in range(2):
                    sent(trio, tensors, **options)
                site = trio[0].stats().sites[-1]
                assert (site.layout == "elements") == form.by_elements, (density, numel, site.reason)
                if site.estimate is not None:
                    assert site.estimate.blocks.bytes == form.blocks_bytes
                    assert site.estimate.elements.bytes == form.elements_bytes
                taken.add((site.layout, site.reason.endswith("with the header")))
    assert taken >= {("blocks", False), ("elements", True)}
    assert (("elements", False) in taken) == (link == 10**6)


def test_a_reason_is_in_words() -> None:
    assert str(BLOCKS_COST_LESS) == (
        "4 MB a rank in place of 5 MB by elements, at 200 Mbit/s: 160 ms in place of 200 ms"
    )
    assert "at 2.5 Gbit/s" in str(replace(BLOCKS_COST_LESS, link=2_500_000_000))


def test_sites_are_those_of_the_latest_calls() -> None:
    sites = Sites()
    keys = [Key("sum", size, "float32", "int32") for size in range(MOST_SITES + 2)]
    for key in keys:
        sites.went(key, "auto", "blocks", "asked for")
        sites.went(keys[0], "auto", "blocks", "asked for")
    found = sites.all()
    assert [site.size for site in found] == [*range(3, MOST_SITES + 2), 0]
    assert found[-1].blocks == MOST_SITES + 3


def interrupt(*_: object) -> None:
    raise InterruptedError


@pytest.mark.parametrize("left", ["C's call", "the plan's end"])
def test_ranks_choose_alike_where_a_call_is_left_when_its_sum_is_there(
    join: Join, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Ranks learn from a sum as soon as it is there, even if the call that waits for it is interrupted."""
    pair = join(2, link="50mbit")
    values = scattered(0.01)
    submission: Any = pair[1]._submission
    engine: Any = pair[1]._engine

    def run_and_leave(handle: Any, request: Any, _: float, *results: Any) -> None:
        library.p4reduce_run(handle, request, 20.0, *results)
        interrupt()

    def end_and_leave(*arguments: Any) -> None:
        Submission.run(submission, *arguments)
        interrupt()

    def first(each: Communicator) -> None:
        with pytest.raises(InterruptedError) if each.rank else contextlib.nullcontext():
            each.allreduce(values[each.rank].clone())

    if left == "C's call" and hasattr(engine, "_library"):
        library = engine._library
        monkeypatch.setattr(engine, "_library", SimpleNamespace(**{**vars(library), "p4reduce_run": run_and_leave}))
    else:
        monkeypatch.setattr(submission, "run", end_and_leave)
    together(pair, first)
    monkeypatch.undo()
    one, other = together(pair, lambda each: [each.allreduce(values[each.rank].clone()) for _ in range(2)])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    assert [site.elements for each in pair for site in each.stats().sites] == [2, 2]


def test_ranks_choose_alike_where_a_call_is_left_after_a_header(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice after a header is recorded before the last operation begins, even if its wait is interrupted."""
    pair = join(2, link="1mbit")
    few = scattered(0.02)
    together(pair, lambda each: each.allreduce(few[each.rank]))
    submission = pair[1]._submission

    def agree(*args: Any, **options: Any) -> None:
        Submission.agree(submission, *args, **options)
        interrupt()

    def reduce(each: Communicator) -> None:
        with pytest.raises(InterruptedError) if each.rank else contextlib.nullcontext():
            each.allreduce(torch.ones(NUMEL))

    monkeypatch.setattr(submission, "agree", agree)
    together(pair, reduce)
    monkeypatch.undo()
    for result in together(pair, lambda each: each.allreduce(torch.ones(NUMEL))):
        assert torch.equal(result, torch.full((NUMEL,), 2.0))


class AsWritten:
    """A call site as docs/wire.md describes it, by someone who has that page alone."""

    def __init__(self, block: int, per_word: int) -> None:
        self.block, self.per_word = block, per_word
        self.asked, self.pause, self.last = False, 0, 0

    def code(self, count: int, bound: int) -> int:
        if count in (0, bound):
            return 0
        low = math.floor(math.log2(bound / count))
        return math.ceil(min(bound, low * count + count + (bound - 1 >> low) + 1) / 32)

    def after_blocks(self, total: Any) -> None:
        if self.pause:
            self.pause -= 1
            return
        size = self.block * self.per_word
        whole = [total[at : at + size] for at in range(0, total.size - size + 1, size)]
        looked = whole[:: max(1, len(whole) // 1024)]
        found = [np.count_nonzero(one) for one in looked]
        count, blocks = sum(found), sum(one > 0 for one in found)
        words = self.code(count, len(looked) * size)
        self.asked = words + count / self.per_word < blocks * self.block

    def goes_by_blocks(self, size: int, elements: list[int], blocks: list[int], links: list[int]) -> bool:
        """Return whether an asked call goes by blocks, if not all of it fits into the first operation."""

        def union(bound: int, counts: list[int]) -> float:
            return bound * (1 - math.prod(1 - count / bound for count in counts))

        per_byte = max([1.2e-9, *(8 / link for link in links if link)])
        codes = sum(self.code(count, size) for count in elements)
        bound = math.ceil(size / (self.block * self.per_word))
        by_blocks = 4 * union(bound, blocks) * self.block * per_byte
        by_elements = 4 * (codes + union(size, elements) / self.per_word) * per_byte
        by_elements += 300e-6 + 3e-9 * size + 70e-9 * sum(elements)
        return by_blocks <= by_elements

    def after_asked(self, *, by_blocks: bool) -> None:
        self.asked = not by_blocks
        self.pause = self.last = min(64, max(1, 2 * self.last)) if by_blocks else 0


def test_a_worker_that_has_read_the_page_chooses_as_this_one() -> None:
    random = np.random.default_rng(7)
    assert f"2^{LEAST.bit_length() - 1} elements or more" in WIRE.read_text()
    assert f"latest {choice.MOST_SITES:,} call sites" in " ".join(WIRE.read_text().split())
    decided = set()
    for per_word in (1, 2, 4):
        ours, theirs = Choices(), AsWritten(64, per_word)
        for call in range(400):
            size = LEAST + 17 * (call // 40)
            if ours["site"].asks:
                elements = [int(size * random.choice([0.001, 0.01, 0.1])) for _ in range(3)]
                blocks = [min(count, size // (64 * per_word)) for count in elements]
                links = [int(one) for one in random.choice([0, 10**8, 10**9, 10**11], 3)]
                estimate = Costs.of_counts(size, 64 * per_word, per_word, elements, blocks).estimate(links)
                by_blocks = theirs.goes_by_blocks(size, elements, blocks, links)
                assert (estimate.layout == "blocks") == by_blocks
                ours.chosen("site", estimate.layout, estimate)
                theirs.after_asked(by_blocks=by_blocks)
                decided.add((per_word, by_blocks))
            else:
                total = np.zeros(size, np.float32)
                total[random.random(size) < random.choice([0.002, 0.02, 0.4, 1])] = 1
                ours.came("site", ours["site"], total, 64 * per_word, per_word)
                theirs.after_blocks(total)
            assert ours["site"].asks == theirs.asked
    assert decided == {(per_word, by_blocks) for per_word in (1, 2, 4) for by_blocks in (False, True)}
