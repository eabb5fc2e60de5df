# SPDX-License-Identifier: Apache-2.0
"""Logs, metrics, traces, and the status that scrapes and pages share. May import `jobs` and what that may import."""
