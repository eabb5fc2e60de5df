# SPDX-License-Identifier: Apache-2.0
"""The target sim: it runs the output of p4c-bm2-ss for v1model, which it translates to Python when it loads it.

- `program`, `expressions`: reading the JSON.
- `code`, `graph`: the intermediate representation, and structured control flow.
- `parser`, `checksums`, `actions`, `pipeline`, `deparser` with `layout`: translation of one part of the program each.
- `rows`, `rowcode`: vectorization of statements that p4c has unrolled.
- `generate`: the two generated functions.
- `tables`, `meters`, `switch`: state at run time.
"""

from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.switch import Switch, load

__all__ = ["Switch", "UnsupportedFeature", "load"]
