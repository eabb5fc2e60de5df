# SPDX-License-Identifier: Apache-2.0
"""Allreduces of published systems, as schedules of messages over the same links.

`SYSTEMS` has the algorithms by name. Hosts compute the sums, so only the sizes of messages and their order matter here.
"""
