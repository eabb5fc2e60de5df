# SPDX-License-Identifier: Apache-2.0
"""The commands that run or ask a controller. May import all but `doctor`."""
