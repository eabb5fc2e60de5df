# SPDX-License-Identifier: Apache-2.0
"""Files of gradients: written and found again, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.errors import P4ReduceError
from p4reduce.tensors.recordings import FACTS, Facts, path_of, write
from p4reduce_bench.recordings import find


def facts(rank: int = 0, iteration: int = 100) -> Facts:
    return Facts(rank=rank, world_size=2, iteration=iteration, buckets=[["b"], ["a.weight", "file"]])


def gradients(value: float = 1.0) -> dict[str, npt.NDArray[Any]]:
    """Return gradients of parameters, one of which has the name of an argument of `write`."""
    return {"b": np.array([0, value], np.float32), "a.weight": np.ones(5, np.float16), "file": np.zeros(3, np.float32)}


def test_what_was_written_is_found_by_iteration_and_rank(tmp_path: Path) -> None:
    for iteration in (200, 100):
        for rank in (1, 0):
            write(path_of(tmp_path, iteration, rank), facts(rank, iteration), gradients())
    found = find([tmp_path])
    assert list(found) == [100, 200]
    assert [[one.facts for one in ranks] for ranks in found.values()] == [
        [facts(0, 100), facts(1, 100)], [facts(0, 200), facts(1, 200)],
    ]  # fmt: skip
    masks = found[100][0].masks()
    assert {name: mask.tolist() for name, mask in masks.items()} == {
        "b": [False, True], "a.weight": [True] * 5, "file": [False] * 3,
    }  # fmt: skip
    assert not list(tmp_path.glob("*.unfinished"))


def test_plain_numpy_reads_them(tmp_path: Path) -> None:
    path = path_of(tmp_path, 1, 0)
    write(path, facts(), gradients())
    with np.load(path, allow_pickle=False) as file:
        assert {name: file[name].tolist() for name in file.files if name != FACTS} == {
            name: array.tolist() for name, array in gradients().items()
        }


def test_zeros_take_no_room(tmp_path: Path) -> None:
    dense, sparse = np.random.default_rng(0).random(100_000, np.float32), np.zeros(100_000, np.float32)
    write(tmp_path / "dense.npz", facts(), {"a": dense})
    write(tmp_path / "sparse.npz", facts(), {"a": sparse})
    assert (tmp_path / "dense.npz").stat().st_size > 400_000
    assert (tmp_path / "sparse.npz").stat().st_size < 10_000


def test_files_of_another_origin_are_ranks_of_one_iteration(tmp_path: Path) -> None:
    for name in ("x", "y"):
        np.savez(tmp_path / f"{name}.npz", first=np.ones((2, 3)), second=np.zeros(4))
    found = find([tmp_path / "y.npz", tmp_path / "x.npz"])
    (ranks,) = found.values()
    assert [(one.path.name, one.facts.rank, one.facts.world_size) for one in ranks] == [
        ("y.npz", 0, 2),
        ("x.npz", 1, 2),
    ]
    assert ranks[0].facts.buckets == [["first", "second"]]
    assert ranks[0].masks()["first"].tolist() == [True] * 6


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    def refused(name: str, match: str) -> None:
        with pytest.raises(P4ReduceError, match=match):
            find([tmp_path / name])

    refused("missing.npz", r"missing\.npz: cannot be read: No such file")
    (tmp_path / "text.npz").write_text("hello")
    refused("text.npz", r"text\.npz: is not an \.npz file of gradients")
    np.save(tmp_path / "single.npy", np.ones(3))
    refused("single.npy", r"single\.npy: is not an \.npz file")
    write(tmp_path / "whole.npz", facts(), gradients())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:300])
    refused("cut.npz", r"cut\.npz: is not an \.npz file")
    np.savez(tmp_path / "later.npz", **{FACTS: np.array('{"rank": 0, "shape": 3}')})
    refused("later.npz", r"later\.npz: is not an \.npz file of gradients")
    (tmp_path / "empty").mkdir()
    refused("empty", r"empty: there are no \.npz files in this folder")


@pytest.mark.parametrize(
    "facts",
    [
        Facts(0, 2, 0, [["a", "nope"]]),
        Facts(0, 2, 0, [["a"], []]),
        Facts(0, 2, 0, []),
        Facts(0, 2, 0, None),  # type: ignore[arg-type]
        Facts("x", 2, 0, [["a"]]),  # type: ignore[arg-type]
        Facts(2, 2, 0, [["a"]]),
    ],
)
def test_facts_that_cannot_be_are_refused(tmp_path: Path, facts: Facts) -> None:
    write(tmp_path / "one.npz", facts, {"a": np.ones(3)})
    with pytest.raises(P4ReduceError, match=r"one\.npz: its description is invalid, or does not match its arrays"):
        find([tmp_path])


def test_arrays_that_are_no_numbers_and_files_without_any_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", a=np.zeros(3, [("x", "f4"), ("y", "f4")]))
    with pytest.raises(P4ReduceError, match=r"array 'a' has dtype .*: accepted are numbers"):
        find([tmp_path / "pairs.npz"])[0][0].masks()
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(P4ReduceError, match=r"is not an \.npz file of gradients"):
        find([tmp_path / "empty.npz"])


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", a=np.array([print], object))
    (recordings,) = find([tmp_path / "evil.npz"]).values()
    with pytest.raises(P4ReduceError, match=r"evil\.npz: holds no plain arrays"):
        recordings[0].masks()


def test_two_trainings_are_not_mixed(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(path_of(tmp_path / folder, 100, 0), facts(), gradients())
    with pytest.raises(P4ReduceError, match="both of rank 0 and iteration 100: analyze one training at a time"):
        find([tmp_path / "one", tmp_path / "two"])


def test_a_parameter_cannot_have_the_name_of_the_facts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a parameter is called 'p4reduce'"):
        write(tmp_path / "x.npz", facts(), {FACTS: np.ones(1)})
