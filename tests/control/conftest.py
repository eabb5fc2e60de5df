# SPDX-License-Identifier: Apache-2.0
"""A controller that follows a script, to see what a session makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scripted_controller import ScriptedController


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    with controller.after:
        yield controller
    controller.stop()
