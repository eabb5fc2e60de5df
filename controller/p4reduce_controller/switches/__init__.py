# SPDX-License-Identifier: Apache-2.0
"""Switches as jobs see them: what one can do, its slots, and how they are connected. Data; imports no other folder."""
