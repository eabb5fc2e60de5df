# SPDX-License-Identifier: Apache-2.0
"""Options as they are written."""

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second, choices, elements, grid, listed, within


@pytest.mark.parametrize(
    ("text", "dtype", "count"),
    [("4096", "float32", 4096), ("25MiB", "float32", 6553600), ("100mib", "float16", 52428800), ("1KB", "int32", 250)],
)
def test_sizes(text: str, dtype: str, count: int) -> None:
    assert elements(text, dtype) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5", "10Mi", "ten", "5iB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(P4ReduceError, match="accepted are"):
        elements(text, "float32")


def test_rates() -> None:
    assert [bits_per_second(text) for text in ("200mbit", "1gbit", "2.5Gbit")] == [2 * 10**8, 10**9, 25 * 10**8]
    for text in ("1000", "0mbit", "1gbps"):
        with pytest.raises(P4ReduceError, match="accepted are"):
            bits_per_second(text)


def test_lists() -> None:
    assert listed("--density", "1, 0.5", within(0, 1), "shares") == [1.0, 0.5]
    assert choices("--overlap", "all,none", ("all", "none")) == ["all", "none"]
    with pytest.raises(P4ReduceError, match=r"--density 2: accepted are shares"):
        listed("--density", "2", within(0, 1), "shares")
    with pytest.raises(P4ReduceError, match="all, none"):
        choices("--overlap", "some", ("all", "none"))


def test_the_grid_keeps_numbers_of_workers_together() -> None:
    cases = grid(workers=[2, 4], numels=[8], dtype="float32", densities=[1, 0], overlaps=["all"], sparsities=["block"])
    assert [(case.workers, case.density) for case in cases] == [(2, 1), (2, 0), (4, 1), (4, 0)]
