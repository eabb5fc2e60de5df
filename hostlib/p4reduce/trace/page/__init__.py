# SPDX-License-Identifier: Apache-2.0
"""The HTML page that draws a trace: one file, which loads nothing else."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from string import Template

from p4reduce.trace.model import Trace, as_dict
from p4reduce.trace.summary import summarise

_HERE = Path(__file__).parent


def write(trace: Trace, file: Path) -> None:
    file.write_text(html(trace))


def html(trace: Trace) -> str:
    """Return the whole page, including the data that it draws."""
    data = json.dumps({"trace": as_dict(trace), "summary": summarise(trace).as_dict()}, separators=(",", ":"))
    return Template((_HERE / "page.html").read_text()).substitute(
        title=escape(f"p4reduce: rounds of {trace.title}"),
        began=datetime.fromtimestamp(trace.began, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        style=(_HERE / "page.css").read_text(),
        script=(_HERE / "page.js").read_text(),
        data=data.replace("<", "\\u003c"),  # so that no name ends the script
    )
