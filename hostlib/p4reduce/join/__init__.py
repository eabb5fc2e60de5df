# SPDX-License-Identifier: Apache-2.0
"""Joining a job and leaving it."""
