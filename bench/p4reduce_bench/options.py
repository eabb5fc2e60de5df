# SPDX-License-Identifier: Apache-2.0
"""The options that several commands have."""

from pathlib import Path
from typing import Annotated

from typer import Option

Target = Annotated[str, Option(help="Target that runs the switch: native or sim.")]
TARGETS = ("native", "sim")
Link = Annotated[str | None, Option(help="Rate of each worker's link, such as 200mbit: needs root.")]
_SLOTS = "Slots of the job, which is the number of packets in flight. 0: what suits the target."
Slots = Annotated[int, Option(min=0, max=512, help=_SLOTS)]
Repeat = Annotated[int, Option(min=1, help="Number of measurements of each case.")]
WarmUp = Annotated[int, Option(min=0, help="Number of reductions before the measurements.")]
Timeout = Annotated[float, Option(min=1, help="Time limit for one reduction, in seconds.")]
JsonFile = Annotated[Path | None, Option("--json", help="File to write all figures to, as JSON.")]
Plot = Annotated[Path | None, Option(help="File to write a plot to.")]
