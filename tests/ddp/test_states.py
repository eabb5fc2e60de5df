# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers send the right values and lose nothing of a gradient. The tests need neither DDP nor a network."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.ddp import BlockRandomKState, BlockThresholdState, BlockTopKState, ElementTopKState, Int8State
from p4reduce.ddp.states import block_norms
from p4reduce.errors import P4ReduceError
from tests.support.hostlib.buckets import BLOCK, Communicator, model, step

Make = Callable[..., Any]

STATES: dict[str, Make] = {
    "top-k": lambda m, **more: BlockTopKState(Communicator(), m, ratio=0.25, **more),
    "reused": lambda m, **more: BlockTopKState(Communicator(), m, ratio=0.25, exact_every=3, **more),
    "elements": lambda m, **more: ElementTopKState(Communicator(), m, ratio=0.004, **more),
    "update ratio": lambda m, **more: BlockTopKState(Communicator(), m, ratio=0.25, by="update ratio", **more),
    "threshold": lambda m, **more: BlockThresholdState(Communicator(), m, threshold=400.0, **more),
    "random-k": lambda m, **more: BlockRandomKState(Communicator(), m, ratio=0.25, seed=3, **more),
}
SHAPES = {"a": (37,), "b": (3, 5, 2, 2), "c": (300,), "d": (), "e": (128, 5)}

every_state = pytest.mark.parametrize("make", STATES.values(), ids=list(STATES))


def random(seed: int, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return gradients of integers, so that sums are exact. Their magnitudes differ much between parameters."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-(4**i), 4**i + 1, parameter.shape, generator=generator).float()
        for i, (name, parameter) in enumerate(parameters.items(), start=2)
    }


def cut(names: list[str], at: list[int]) -> list[list[str]]:
    cuts = sorted({0, len(names), *(cut % len(names) for cut in at)})
    return [names[one:other] for one, other in itertools.pairwise(cuts)]


def one_vector(blocks: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    made = model(a=(blocks * BLOCK,))
    return made, dict(made.named_parameters())


def vector(norms: list[float]) -> dict[str, torch.Tensor]:
    """Return a gradient whose blocks have these norms."""
    rows = torch.zeros(len(norms), BLOCK)
    rows[:, 7] = torch.tensor(norms)
    return {"a": rows.view(-1)}


def chosen(sent: torch.Tensor) -> list[int]:
    return block_norms(sent, BLOCK).nonzero().view(-1).tolist()


@every_state
@settings(max_examples=30)
@given(
    orders=st.lists(
        st.tuples(st.permutations(list(SHAPES)), st.lists(st.integers(0, 4), max_size=2)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_what_was_sent_and_what_is_kept_are_the_gradients(
    make: Make, orders: list[tuple[list[str], list[int]]], seed: int, dtype: torch.dtype
) -> None:
    """The error of rounding to 16 bits is kept, too."""
    made = model(**SHAPES)
    parameters = dict(made.named_parameters())
    state = make(made)
    given_ = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    sent = copy.deepcopy(given_)
    for number, (names, at) in enumerate(orders):
        gradients = {name: each.to(dtype) for name, each in random(seed + number, parameters).items()}
        passed = step(state, parameters, gradients, cut(names, at), dtype)
        for name in SHAPES:
            assert passed[name].dtype == dtype
            given_[name] += gradients[name]
            sent[name] += passed[name]
    kept = state.state_dict()["residuals"]
    for name in SHAPES:
        assert torch.equal(sent[name] + kept[name], given_[name]), name
    assert state.stats().iterations == len(orders)


@every_state
def test_defaults_of_torch_change_nothing(make: Make) -> None:
    """A default device that has no memory, and another default dtype."""
    made, parameters = one_vector(40)
    gradient = vector([float(norm) for norm in range(1, 41)])
    expected = step(make(made), parameters, gradient, [["a"]])["a"]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            state = make(made)
            sent = step(state, parameters, gradient, [["a"]])["a"]
            norm = state.stats().residual_norm
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(sent, expected)
    assert norm == pytest.approx(float((gradient["a"] - expected).norm()))


@every_state
def test_without_error_feedback_nothing_is_kept(make: Make) -> None:
    made, parameters = one_vector(40)
    state = make(made, error_feedback=False)
    gradient = vector([float(norm) for norm in range(1, 41)])
    first = step(state, parameters, gradient, [["a"]])["a"]
    again = step(state, parameters, vector([0.0] * 40), [["a"]])["a"]
    assert not again.any()
    assert torch.equal(first, torch.where(first != 0, gradient["a"], 0))
    assert state.stats().residual_norm == 0
    assert state.state_dict()["residuals"] == {}


@every_state
def test_all_is_sent_before_the_start_iteration(make: Make) -> None:
    made, parameters = one_vector(40)
    state = make(made, start_iteration=2)
    gradient = vector([float(norm) for norm in range(1, 41)])
    for iteration in range(4):
        sent = step(state, parameters, gradient, [["a"]])["a"]
        assert torch.equal(sent, gradient["a"]) == (iteration < 2)
        assert (state.stats().residual_norm == 0) == (iteration < 2)


def test_the_largest_blocks_are_sent() -> None:
    made, parameters = one_vector(10)
    state = BlockTopKState(Communicator(), made, ratio=0.25)
    sent = step(state, parameters, vector([3, 1, 4, 1, 5, 9, 2, 6, 5.5, 3]), [["a"]])["a"]
    assert chosen(sent) == [5, 7, 8]  # 2.5 of 10, rounded up
    # Values that were not sent stay in the residual: 5 is the largest of these, and no new value is larger than 2.
    sent = step(state, parameters, vector([0] * 9 + [1]), [["a"]])["a"]
    assert chosen(sent) == [2, 4, 9]
    assert state.stats().density == 6 / 20


def test_the_largest_elements_are_sent_wherever_they_stand() -> None:
    made, parameters = one_vector(10)
    state = ElementTopKState(Communicator(), made, ratio=3 / 640)
    gradient = torch.zeros(640)
    gradient[[5, 6, 300, 301, 639]] = torch.tensor([3.0, -5.0, 1.0, 4.0, -2.0])
    assert step(state, parameters, {"a": gradient}, [["a"]])["a"].nonzero().view(-1).tolist() == [5, 6, 301]
    assert step(state, parameters, {"a": gradient / 16}, [["a"]])["a"].nonzero().view(-1).tolist() == [6, 300, 639]


def test_update_ratio_weighs_blocks_by_their_parameters() -> None:
    made, parameters = one_vector(4)
    with torch.no_grad():
        parameters["a"].view(4, BLOCK)[:, 0] = torch.tensor([10.0, 1.0, 0.1, 100.0])
    state = BlockTopKState(Communicator(), made, ratio=0.5, by="update ratio")
    assert chosen(step(state, parameters, vector([20, 3, 1, 50]), [["a"]])["a"]) == [1, 2]
    with torch.no_grad():
        parameters["a"].zero_()
    # A block of parameters that are zero still has a place: any gradient changes it without bounds.
    assert len(chosen(step(state, parameters, vector([1, 1, 1, 1]), [["a"]])["a"])) == 2


def test_blocks_that_reach_the_threshold_are_sent() -> None:
    made, parameters = one_vector(5)
    state = BlockThresholdState(Communicator(), made, threshold=2.0)
    assert chosen(step(state, parameters, vector([1, 2, 3, 0.5, 0]), [["a"]])["a"]) == [1, 2]
    assert chosen(step(state, parameters, vector([1, 0, 0, 1, 0]), [["a"]])["a"]) == [0]


def test_random_blocks_are_the_same_on_all_ranks_and_others_in_each_iteration() -> None:
    rounds = []
    for rank in range(3):
        made, parameters = one_vector(100)
        state = BlockRandomKState(Communicator(rank), made, ratio=0.1, seed=5)
        gradient = vector([float(rank + 1)] * 100)
        rounds.append([tuple(chosen(step(state, parameters, gradient, [["a"]])["a"])) for _ in range(5)])
    assert rounds[0] == rounds[1] == rounds[2]
    assert len(set(rounds[0])) == 5
    assert {len(blocks) for blocks in rounds[0]} == {10}
    made, parameters = one_vector(100)
    other = BlockRandomKState(Communicator(), made, ratio=0.1, seed=6)
    assert tuple(chosen(step(other, parameters, vector([1.0] * 100), [["a"]])["a"])) != rounds[0][0]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    drift=st.floats(0.0, 0.6),
    ratio=st.sampled_from([0.02, 0.1, 0.5]),
    tolerance=st.sampled_from([1.0, 1.25, 2.0]),
)
def test_a_reused_threshold_keeps_the_count_within_its_bounds(
    seed: int, drift: float, ratio: float, tolerance: float
) -> None:
    made, parameters = one_vector(200)
    state = BlockTopKState(Communicator(), made, ratio=ratio, exact_every=5, tolerance=tolerance)
    generator = torch.Generator().manual_seed(seed)
    k = math.ceil(ratio * 200)
    for iteration in range(15):
        scale = math.exp(drift * iteration * (-1) ** seed)
        norms = (scale * torch.rand(200, generator=generator)).tolist()
        count = len(chosen(step(state, parameters, vector(norms), [["a"]])["a"]))
        assert k / tolerance <= count <= k * tolerance
        if iteration % 5 == 0:
            assert count == k


def test_a_threshold_is_reused() -> None:
    made, parameters = one_vector(200)
    state = BlockTopKState(Communicator(), made, ratio=0.1, exact_every=5, error_feedback=False)
    generator = torch.Generator().manual_seed(0)
    counts = [
        len(chosen(step(state, parameters, vector(torch.rand(200, generator=generator).tolist()), [["a"]])["a"]))
        for _ in range(15)
    ]
    assert state.exact_choices < 8
    assert len(set(counts)) > 1


@every_state
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_sent_at_once_and_never_kept(make: Make, bad: float) -> None:
    made, parameters = one_vector(40)
    state = make(made)
    gradient = vector([1e3 * norm for norm in range(1, 41)])
    gradient["a"][2 * BLOCK] = bad
    gradient["a"][31 * BLOCK + 5] = bad
    sent = step(state, parameters, gradient, [["a"]])["a"]
    assert not sent[2 * BLOCK].isfinite()
    assert not sent[31 * BLOCK + 5].isfinite()
    assert sent.isfinite().count_nonzero() == 40 * BLOCK - 2
    kept = state.state_dict()["residuals"]["a"]
    assert kept.isfinite().all()
    good = sent.isfinite()
    assert torch.equal((sent + kept)[good], gradient["a"][good])


def test_an_overflow_of_float16_is_sent_and_not_kept() -> None:
    made, parameters = one_vector(1)
    state = BlockTopKState(Communicator(), made, ratio=1.0)
    state.load_state_dict({**state.state_dict(), "residuals": {"a": torch.full((BLOCK,), 60_000.0)}})
    sent = step(state, parameters, {"a": torch.full((BLOCK,), 10_000.0)}, [["a"]], torch.float16)["a"]
    assert sent.isinf().all()
    assert not state.state_dict()["residuals"]["a"].any()


def test_residuals_have_the_shape_of_their_parameter_whatever_its_memory() -> None:
    made = model(a=(4, 8, 4, 4), b=(64,))
    made.to(memory_format=torch.channels_last)
    parameters = dict(made.named_parameters())
    assert not parameters["a"].is_contiguous()
    state = BlockThresholdState(Communicator(), made, threshold=1e9)
    gradient = torch.arange(512.0).view(4, 8, 4, 4)
    laid_out = {"a": gradient.to(memory_format=torch.channels_last), "b": torch.ones(64)}
    step(state, parameters, laid_out, [["b", "a"]])
    saved = state.state_dict()
    assert torch.equal(saved["residuals"]["a"], gradient)
    # The same model in another memory format goes on with the same, and so does the same state.
    other = model(a=(4, 8, 4, 4), b=(64,))
    resumed = BlockThresholdState(Communicator(), other, threshold=0.0)
    resumed.load_state_dict(saved)
    ones = {"a": torch.ones(4, 8, 4, 4), "b": torch.ones(64)}
    assert torch.equal(step(resumed, dict(other.named_parameters()), ones, [["a"], ["b"]])["a"], gradient + 1)
    made.to(memory_format=torch.contiguous_format)
    state.threshold = 0.0
    assert parameters["a"].is_contiguous()
    assert torch.equal(step(state, parameters, ones, [["b", "a"]])["a"], gradient + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda made: BlockTopKState(Communicator(), made, ratio=0.25),
        lambda made: ElementTopKState(Communicator(), made, ratio=0.25),
        lambda made: Int8State(Communicator(), made),
    ],
    ids=["blocks", "elements", "int8"],
)
def test_what_is_kept_of_a_parameter_waits_while_that_has_no_gradient(make: Make) -> None:
    """DDP drops what comes back for a parameter that no rank has used."""
    made = model(a=(100,), b=(100,))  # which share a block
    parameters = dict(made.named_parameters())
    state = make(made)
    state.load_state_dict({**state.state_dict(), "residuals": {"a": torch.full((100,), 3.0), "b": torch.ones(100)}})
    sent = step(state, parameters, {"a": torch.zeros(100), "b": torch.full((100,), 0.5)}, [["a", "b"]])
    kept = state.state_dict()["residuals"]
    assert not sent["a"].any()
    assert torch.equal(kept["a"], torch.full((100,), 3.0))
    assert sent["b"].any()
    assert torch.equal(sent["b"] + kept["b"], torch.full((100,), 1.5))


@every_state
def test_a_checkpoint_goes_on_with_other_buckets(make: Make) -> None:
    made = model(**SHAPES)
    parameters = dict(made.named_parameters())
    state = make(made)
    for number in range(3):
        step(state, parameters, random(number, parameters), [["e", "d"], ["c", "b", "a"]])
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = model(**SHAPES)
    resumed = make(other)
    resumed.load_state_dict(saved)
    assert resumed.stats() == state.stats()
    gradients = random(9, parameters)
    sent = step(resumed, dict(other.named_parameters()), gradients, [["a", "e"], ["c"], ["d", "b"]])
    kept = resumed.state_dict()["residuals"]
    for name in SHAPES:
        assert torch.equal(sent[name] + kept[name], saved["residuals"][name] + gradients[name])


@every_state
def test_a_checkpoint_with_the_same_buckets_sends_the_same(make: Make) -> None:
    made = model(**SHAPES)
    parameters = dict(made.named_parameters())
    state, buckets = make(made), [["e", "d"], ["c", "b", "a"]]
    for number in range(4):
        step(state, parameters, random(number, parameters), buckets)
    resumed = make(made)
    resumed.load_state_dict(state.state_dict())
    for number in range(4, 8):
        gradients = random(number, parameters)
        one, other = (step(each, parameters, gradients, buckets) for each in (state, resumed))
        assert all(torch.equal(one[name], other[name]) for name in SHAPES)


def test_a_checkpoint_that_does_not_fit_is_refused() -> None:
    made = model(a=(10,))
    state = BlockRandomKState(Communicator(rank=1), made)
    step(state, dict(made.named_parameters()), {"a": torch.ones(10)}, [["a"]])
    saved = state.state_dict()
    with pytest.raises(ValueError, match="saved by rank 1 of 2, and this is rank 0 of 2"):
        BlockRandomKState(Communicator(rank=0), made).load_state_dict(saved)
    with pytest.raises(ValueError, match="saved by rank 1 of 2, and this is rank 1 of 3"):
        BlockRandomKState(Communicator(rank=1, world_size=3), made).load_state_dict(saved)
    with pytest.raises(ValueError, match="parameter 'a': the model has no parameter of that name"):
        BlockRandomKState(Communicator(rank=1), model(b=(10,))).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"'a' has shape \(10,\): the parameter's is \(2, 5\)"):
        BlockRandomKState(Communicator(rank=1), model(a=(2, 5))).load_state_dict(saved)
    with pytest.raises(ValueError, match="version 7: accepted is 2"):
        state.load_state_dict({**saved, "version": 7})
    with pytest.raises(ValueError, match="state lacks iteration, residuals: accepted is the whole"):
        state.load_state_dict({name: saved[name] for name in saved.keys() - {"residuals", "iteration"}})
    with pytest.raises(ValueError, match="iteration='x': must be an integer"):
        state.load_state_dict({**saved, "iteration": "x"})
    with pytest.raises(TypeError, match=r"state is a NoneType: accepted is the result of state_dict\(\)"):
        state.load_state_dict(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [BlockTopKState, ElementTopKState, Int8State])
def test_a_checkpoint_of_another_hook_is_refused_and_changes_nothing(other: Any) -> None:
    made = model(a=(10,))
    state = BlockRandomKState(Communicator(rank=1), made)
    step(state, dict(made.named_parameters()), {"a": torch.ones(10)}, [["a"]])
    given = other(Communicator(rank=1), made)
    with pytest.raises(
        ValueError, match=f"state was saved for the hook block_randomk_hook: accepted is a state of {given.hook}"
    ):
        given.load_state_dict(state.state_dict())
    assert given.iteration == 0


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model is a NoneType: accepted is the torch\.nn\.Module that DDP trains"):
        Int8State(Communicator(rank=0), None)  # type: ignore[arg-type]


@every_state
def test_pickled_without_the_handles_of_its_process(make: Make) -> None:
    made, parameters = one_vector(40)
    state = make(made)
    step(state, parameters, vector([1e3 * norm for norm in range(40)]), [["a"]])
    revived = pickle.loads(pickle.dumps(state))
    assert revived.communicator is None
    assert revived.model is None
    with pytest.raises(P4ReduceError, match="set its attribute communicator"):
        step(revived, parameters, vector([0] * 40), [["a"]])
    revived.communicator = Communicator()
    with pytest.raises(P4ReduceError, match="set its attribute model"):
        step(revived, parameters, vector([0] * 40), [["a"]])
    revived.model = made
    assert revived.stats() == state.stats()
    one, other = (step(each, parameters, vector([1.0] * 40), [["a"]])["a"] for each in (state, revived))
    assert torch.equal(one, other)


def test_a_parameter_of_another_model_is_refused() -> None:
    state = BlockRandomKState(Communicator(), model(a=(4,)))
    other = dict(model(a=(4,)).named_parameters())
    with pytest.raises(ValueError, match="the given model does not have"):
        step(state, other, {"a": torch.ones(4)}, [["a"]])


@pytest.mark.parametrize(
    ("kind", "knobs", "message"),
    [
        (BlockTopKState, {"ratio": 0}, "ratio=0: must be a number above 0"),
        (BlockTopKState, {"ratio": 1.5}, "ratio=1.5"),
        (BlockTopKState, {"ratio": math.nan}, "ratio=nan"),
        (BlockTopKState, {"by": "max"}, "by='max': accepted are 'norm' and 'update ratio'"),
        (BlockTopKState, {"exact_every": 0}, "exact_every=0: must be an integer of 1 or more"),
        (BlockTopKState, {"tolerance": 0.5}, "tolerance=0.5: must be a number of 1 or more"),
        (BlockTopKState, {"start_iteration": -1}, "start_iteration=-1: must be an integer of 0 or more"),
        (BlockThresholdState, {"threshold": -1.0}, "threshold=-1.0: must be a number of 0 or more"),
        (BlockThresholdState, {"threshold": math.inf}, "threshold=inf"),
        (BlockRandomKState, {"ratio": -0.1}, "ratio=-0.1"),
        (BlockRandomKState, {"seed": -1}, "seed=-1: must be an integer of 0 or more"),
    ],
)
def test_knobs_are_checked(kind: Make, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(Communicator(), model(a=(4,)), **knobs)


def wrapped(kind: str, plain: torch.nn.Module) -> torch.nn.Module:
    if kind == "compiled":
        return torch.compile(plain)  # type: ignore[return-value]
    if kind == "a part compiled":
        plain.part = torch.compile(plain.part)  # type: ignore[assignment, arg-type]
    elif kind == "checkpointed":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        plain.part = checkpoint_wrapper(plain.part)  # type: ignore[no-untyped-call, arg-type]
    return plain


@pytest.mark.parametrize("kind", ["plain", "compiled", "a part compiled", "checkpointed"])
def test_checkpoints_pass_between_wrapped_models(kind: str) -> None:
    for before, after in (("plain", kind), (kind, "plain")):
        check_passes(before, after)


def check_passes(before: str, after: str) -> None:
    def state(kind: str) -> tuple[BlockTopKState, torch.nn.Module]:
        plain = torch.nn.Module()
        plain.part = model(a=(8 * BLOCK,))
        return BlockTopKState(Communicator(), wrapped(kind, plain), ratio=0.25), plain

    first, plain = state(before)
    parameter = dict(plain.named_parameters())
    gradient = vector([1.0, 2, 3, 4, 5, 6, 7, 8])
    (name,) = parameter
    step(first, parameter, {name: gradient["a"]}, [[name]])
    saved = first.state_dict()
    assert list(saved["residuals"]) == ["part.a"]
    second, _ = state(after)
    second.load_state_dict(saved)
    assert second.stats().residual_norm == first.stats().residual_norm > 0
    old = {**saved, "residuals": {"_orig_mod.part.a": saved["residuals"]["part.a"]}}
    second.load_state_dict(old)
