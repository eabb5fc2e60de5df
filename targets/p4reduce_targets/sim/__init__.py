# SPDX-License-Identifier: Apache-2.0
"""A switch that runs the output of p4c-bm2-ss for v1model, translated to Python once, when it is loaded.

`code` and `graph` are what every part is translated to; `program` and `expressions` read the JSON; `parser`,
`checksums`, `actions`, `pipeline`, `deparser` (with `layout`) translate one part each, `rows` and `rowcode` what is
repeated for each value; `generate` joins them; `tables`, `meters` and `switch` are there at run time.
"""

from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.switch import Switch, load

__all__ = ["Switch", "UnsupportedFeature", "load"]
