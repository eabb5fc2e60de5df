# SPDX-License-Identifier: Apache-2.0
"""The protocol's tests again, with the C worker in the Python worker's place."""

from __future__ import annotations

import pytest
import simulator
import test_begin_anew
import test_disagreement
import test_one_round
import test_traffic
import test_vectors
import test_worker
import test_worker_timing
from test_begin_anew import *  # noqa: F403
from test_disagreement import *  # noqa: F403
from test_one_round import *  # noqa: F403
from test_traffic import *  # noqa: F403
from test_vectors import *  # noqa: F403
from test_worker import *  # noqa: F403
from test_worker_timing import *  # noqa: F403

from p4reduce.fastpath.worker import Worker

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture(autouse=True)
def _c_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        simulator,
        test_begin_anew,
        test_disagreement,
        test_one_round,
        test_traffic,
        test_vectors,
        test_worker,
        test_worker_timing,
    ):
        if hasattr(module, "Worker"):
            monkeypatch.setattr(module, "Worker", Worker)
