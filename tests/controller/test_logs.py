# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.observability import logs
from p4reduce_controller.observability.logs import about, logging_about, start_logging
from tests.support.controller.sites import site_of


def job_called(name: str) -> Job:
    return Job(name, 3, 17, 2, 4, {}, 0, 10.0, 0.0, 60.0, 0, site_of(1))


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Yield a function that returns what was logged there. The root logger's handlers are restored in the end."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    for handler in before:  # force=True would close them
        root.removeHandler(handler)
    yield lambda: capsys.readouterr().err
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)


def test_what_stderr_is_when_something_is_logged(stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    start_logging("text", logging.INFO)
    later = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", later)
        logging.warning("into it")
    logging.warning("after it")
    assert later.getvalue() == "WARNING into it\n"
    assert stderr() == "WARNING after it\n"


def test_json_has_an_object_a_line_whatever_is_logged(stderr: Callable[[], str]) -> None:
    start_logging("json", logging.INFO)
    log = logging.getLogger("p4reduce_controller.some")
    log.warning("a job named %r\nwith two lines", 'x"y')
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        log.exception("it failed")
    first, second = map(json.loads, stderr().splitlines())
    assert first["message"] == "a job named 'x\"y'\nwith two lines"
    assert (first["level"], first["logger"]) == ("WARNING", "p4reduce_controller.some")
    assert first["time"].endswith("+00:00")
    assert "ZeroDivisionError: division by zero" in second["error"]
    assert "job" not in first


async def test_the_job_is_told_that_a_record_or_its_task_is_about(stderr: Callable[[], str]) -> None:
    start_logging("json", logging.INFO)
    log = logging.getLogger("some")
    with logging_about(job_called("a")):
        task = asyncio.create_task(asyncio.to_thread(log.info, "of its task"))
    log.info("of nobody")
    log.info("of b", extra=about(job_called("b")))
    await task
    told = {line["message"]: line.get("job") for line in map(json.loads, stderr().splitlines())}
    assert told == {"of its task": "a", "of nobody": None, "of b": "b"}
    assert about(job_called("b"))["job_number"] == "3.17"


def test_a_tenant_is_told_where_there_is_one() -> None:
    job = job_called("a")
    job.tenant = "blue"
    assert logs.about(job)["tenant"] == "blue"


def test_text_is_as_ever(stderr: Callable[[], str]) -> None:
    start_logging("text", logging.WARNING)
    logging.getLogger("some").info("not told")
    logging.getLogger("some").warning("told")
    assert stderr() == "WARNING told\n"
