# SPDX-License-Identifier: Apache-2.0
"""Arguments, and the environment's variables where they are not given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from p4reduce import settings

DEFAULTS: dict[str, tuple[Callable[[], object], object]] = {
    "P4REDUCE_CONTROLLER": (lambda: settings.text("controller", None, "P4REDUCE_CONTROLLER", "here"), "here"),
    "P4REDUCE_TOKEN": (lambda: settings.token(None), None),
    "P4REDUCE_SWITCH": (lambda: settings.switch(None), ""),
    "P4REDUCE_TLS_CA": (lambda: settings.tls(None), None),
    "P4REDUCE_TRANSPORT": (lambda: settings.transport(None), "udp"),
    "P4REDUCE_WIRE": (lambda: settings.wire(None), "auto"),
    "P4REDUCE_LOCAL": (lambda: settings.local(None), "auto"),
    "P4REDUCE_LOCAL_COPIES": (lambda: settings.local(None), "auto"),
    "P4REDUCE_THREADS": (lambda: settings.threads(None), 1),
    "P4REDUCE_LINK": (lambda: settings.link(None), 0),
}
INTEGERS = {
    "P4REDUCE_THREADS": (lambda: settings.threads(None), "from 1 to 16"),
    "RANK": (lambda: settings.rank_of_world(None, 4), "from 0 to 3"),
    "WORLD_SIZE": (lambda: settings.rank_of_world(0, None), "from 1 to 4096"),
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*DEFAULTS, *INTEGERS):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("variable", DEFAULTS)
def test_an_empty_variable_is_none(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, default = DEFAULTS[variable]
    assert read() == default
    monkeypatch.setenv(variable, "")
    assert read() == default


@pytest.mark.parametrize(("variable", "name"), [("RANK", "rank"), ("WORLD_SIZE", "world_size")])
def test_an_empty_variable_does_not_say_which_rank_it_is(
    variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(ValueError, match=f"{name} is not given, and neither is the environment variable {variable}"):
        INTEGERS[variable][0]()


@pytest.mark.parametrize(
    ("variable", "written", "accepted"),
    [
        ("P4REDUCE_TRANSPORT", "tcp", "accepted are udp, raw, scapy"),
        ("P4REDUCE_WIRE", "int64", "accepted are auto, int32, int16, int8"),
        ("P4REDUCE_LOCAL", "on", "accepted are auto, off"),
        ("P4REDUCE_LOCAL_COPIES", "yes", "accepted are 0, 1"),
        ("P4REDUCE_LOCAL_COPIES", "2", "accepted are 0, 1"),
        ("P4REDUCE_LINK", "fast", "accepted are rates such as 200mbit"),
        ("P4REDUCE_LINK", "\u0663mbit", "accepted are rates such as 200mbit"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, written: str, accepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, written)
    with pytest.raises(ValueError, match=f"^{variable}='{written}': {accepted}"):
        DEFAULTS[variable][0]()


@pytest.mark.parametrize("written", ["two", "2.5", " 2", "1e1", "\u0663", "\u00b2", "2_0", "5000", "-1", "9" * 5000])
@pytest.mark.parametrize("variable", INTEGERS)
def test_a_variable_that_is_no_such_integer_is_named(
    variable: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, written)
    read, accepted = INTEGERS[variable]
    with pytest.raises(ValueError, match=f"^{variable}='?{written}'?: must be an integer {accepted}"):
        read()


def test_an_argument_comes_before_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"P4REDUCE_THREADS": "3", "RANK": "2", "WORLD_SIZE": "4", "P4REDUCE_LINK": "1gbit"}
    for variable, value in written.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("P4REDUCE_LOCAL", "off")
    assert (settings.local(None), settings.local("auto")) == ("off", "auto")
    assert (settings.threads(None), settings.threads(2)) == (3, 2)
    assert (settings.rank_of_world(None, None), settings.rank_of_world(0, 2)) == ((2, 4), (0, 2))
    assert (settings.link(None), settings.link("2mbit"), settings.link("")) == (10**9, 2 * 10**6, 0)


@pytest.mark.parametrize(
    ("read", "value", "accepted"),
    [(settings.local, value, "local={!r}: accepted are auto, off") for value in (True, 1, "", "on", "AUTO")]
    + [(settings.link, value, "link={!r}: accepted are rates such as") for value in (True, 5, "on")],
)
def test_a_wrong_argument_is_told_the_right_ones(read: Callable[[Any], object], value: Any, accepted: str) -> None:
    with pytest.raises(ValueError, match=f"^{accepted.format(value)}"):
        read(value)


@pytest.mark.parametrize(("written", "seconds"), [("", 0.0), ("600", 600.0), ("1.5", 1.5)])
def test_seconds_in_the_queue(monkeypatch: pytest.MonkeyPatch, written: str, seconds: float) -> None:
    monkeypatch.setenv("P4REDUCE_QUEUE", written)
    assert settings.queue() == seconds


@pytest.mark.parametrize("written", ["soon", "-1", "nan", "inf", "1e9"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("P4REDUCE_QUEUE", written)
    with pytest.raises(ValueError, match=f"P4REDUCE_QUEUE='{written}': must be a number of seconds from 0 to 604800"):
        settings.queue()
