# SPDX-License-Identifier: Apache-2.0
"""One switch, over P4Runtime, packets and gNMI: implements `switches.aggregator`. May import `base` and `switches`."""
