# SPDX-License-Identifier: Apache-2.0
import pytest

from p4reduce.protocol.timing import RetransmissionTimer, Timing

WIDE = Timing(initial=0.1, margin=1e-5, ceiling=100.0, poll=10.0)


def test_before_any_measurement() -> None:
    timer = RetransmissionTimer(WIDE)
    assert timer.wait(0, polling=False) == 0.1


def test_rfc_6298() -> None:
    timer = RetransmissionTimer(WIDE)
    timer.measure(0.010)
    assert timer.timeout == pytest.approx(0.010 + 4 * 0.005)
    timer.measure(0.018)
    variation = 0.75 * 0.005 + 0.25 * 0.008
    assert timer.variation == pytest.approx(variation)
    assert timer.timeout == pytest.approx(0.875 * 0.010 + 0.125 * 0.018 + 4 * variation)


def test_settles_on_a_steady_round_trip() -> None:
    timer = RetransmissionTimer(WIDE)
    for _ in range(200):
        timer.measure(0.02)
    assert timer.timeout == pytest.approx(2 * 0.02, rel=1e-3)


def test_bounds() -> None:
    timer = RetransmissionTimer(Timing(initial=0.1, margin=0.05, ceiling=1.0, poll=0.3))
    timer.measure(1e-9)
    assert timer.timeout == pytest.approx(0.05)
    for _ in range(100):
        timer.measure(50.0)
    assert timer.timeout == 1.0


def test_back_off() -> None:
    timer = RetransmissionTimer(Timing(initial=0.1, margin=0.05, ceiling=1.0, poll=0.3))
    assert [timer.wait(n, polling=False) for n in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [timer.wait(n, polling=True) for n in range(4)] == [0.1, 0.2, 0.3, 0.3]
    assert timer.wait(10_000, polling=False) == 1.0


@pytest.mark.parametrize(
    "options",
    [{"margin": 0.0}, {"margin": 0.5, "initial": 0.1}, {"initial": 2.0}, {"poll": 5.0}, {"poll": 1e-6}],
)
def test_senseless_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling"):
        Timing(**options)
