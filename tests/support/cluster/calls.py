# SPDX-License-Identifier: Apache-2.0
"""Allreduce calls of every shape and dtype, and a job that makes them."""

from __future__ import annotations

from p4reduce.protocol.numbers import WIRES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Setting

SHAPES = [
    Call(()),
    Call((0,)),
    Call((1,)),
    Call((257,), dtype="int32", density=1.0),
    Call((3, 5, 70), seed=1),
    Call((20_000,), density=0.05, seed=2),
    Call((10_000,), density=0.0),
    Call((33, 100), dtype="float16", density=0.5, strided=True, seed=3),
    Call((5000,), op="average", seed=4),
    Call((130, 40), density=1.0, strided=True, seed=5),
    Call((5000,), wire="int16", density=0.7, seed=6),
    Call((6000,), wire="int8", op="average", seed=7),
    Call((90, 100), layout="elements", scattered=True, seed=8),
    Call((9000,), dtype="float16", layout="elements", op="average", scattered=True, seed=9),
]


# Every dtype with every wire format, in both layouts.
FORMS = [
    Call((size,), dtype=dtype, wire=wire, layout=layout, op=op, scattered=layout == "elements", density=0.3, seed=seed)
    for seed, (dtype, wire) in enumerate(
        [("int32", "int32"), *((dtype, wire) for dtype in ("float32", "float16", "bfloat16") for wire in WIRES)], 20
    )
    for layout, size, op in (
        ("blocks", 1500, "sum"),
        ("elements", 2500, "sum" if dtype == "int32" else "average"),
    )
]


def finish(setting: Setting, calls: list[Call], job: str, **options: object) -> None:
    """Run a job, and assert that all its ranks complete all calls."""
    with setting.ranks(calls, job=job, **options) as ranks:  # type: ignore[arg-type]
        for rank, last in ranks.wait_for_ends(120).items():
            assert "stats" in last, f"rank {rank} of {job}: {last}"
            assert (
                last["stats"]["operations"] == sum(call.operations for call in calls) + 1
            )  # the final barrier counts too
