# SPDX-License-Identifier: Apache-2.0
"""Measurements on networks, and series of them."""
