# SPDX-License-Identifier: Apache-2.0
"""Errors that are stored and raised keep nothing alive, and are otherwise the same."""

from __future__ import annotations

import pytest

from p4reduce import CollectiveTimeout, JobAborted
from p4reduce.errors import without_frames


class Odd(Exception):
    """Takes other arguments than its instances have."""

    def __new__(cls, code: int) -> Odd:
        return super().__new__(cls, code + 1)

    def __init__(self, code: int) -> None:
        super().__init__(f"bad {code}")
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        JobAborted("rank 1 went", rank=1, reason="LEFT"),
        CollectiveTimeout("late", awaited=(2, 3)),
        OSError(111, "refused", "socket"),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"),
        KeyError("key"),
        SystemExit(3),
        Odd(5),
    ],
)
def test_a_copy_has_all_but_the_frames(error: BaseException) -> None:
    try:
        raise error from ValueError("cause")
    except BaseException as caught:
        copied = without_frames(caught)
    assert type(copied) is type(error)
    assert (copied.args, str(copied), vars(copied)) == (error.args, str(error), vars(error))
    assert getattr(copied, "errno", None) == getattr(error, "errno", None)
    assert getattr(copied, "code", None) == getattr(error, "code", None)
    assert copied is not error
    assert repr(copied.__cause__) == "ValueError('cause')"
    assert copied.__traceback__ is None
    assert error.__traceback__ is not None


def test_what_led_to_it_has_no_frames_either() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as caught:
        caught.__context__.__context__ = caught  # type: ignore[union-attr] # errors may refer to each other
        copied = without_frames(caught)
    context = copied.__context__
    assert isinstance(context, KeyError)
    assert context.__traceback__ is None
    assert context.__context__ is copied
    assert copied.__suppress_context__
