# SPDX-License-Identifier: Apache-2.0
"""Rounds as they went: from packets that were captured, to be looked at in a page, in Perfetto or as JSON."""
