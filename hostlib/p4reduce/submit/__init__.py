# SPDX-License-Identifier: Apache-2.0
"""Plans on their way to the engine: order of calls, waits for devices, choice of a layout, repeated calls."""
