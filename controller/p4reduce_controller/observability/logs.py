# SPDX-License-Identifier: Apache-2.0
"""The controller's log: as text, or as JSON with one object per line, with the job that a line is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, TextIO

from p4reduce_controller.jobs.job import Job

FORMATS = ("text", "json")

_ABOUT: ContextVar[Mapping[str, str] | None] = ContextVar("about", default=None)


def about(job: Job) -> dict[str, str]:
    """Return the extra fields of a log record: `extra=about(job)`."""
    fields = {"job": job.name, "job_number": f"{job.number}.{job.generation}"}
    return {**fields, "tenant": job.tenant} if job.tenant else fields


@contextmanager
def logging_about(job: Job) -> Iterator[None]:
    """Add the job to what this task, and tasks that it starts, log meanwhile."""
    token = _ABOUT.set(about(job))
    try:
        yield
    finally:
        _ABOUT.reset(token)


def start_logging(form: str, level: int) -> None:
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(_add_job)
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes to the present `sys.stderr`, even if that was replaced."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


class JsonFormatter(logging.Formatter):
    """A formatter of log records as JSON.

    Each has time (RFC 3339, UTC), level, logger and message. If they exist, it also has job, job_number and tenant, and
    error with its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key in ("job", "job_number", "tenant"):
            if value := getattr(record, key, ""):
                fields[key] = str(value)
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _add_job(record: logging.LogRecord) -> bool:
    for key, value in (_ABOUT.get() or {}).items():
        if not hasattr(record, key):
            setattr(record, key, value)
    return True
