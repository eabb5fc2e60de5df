# SPDX-License-Identifier: Apache-2.0
"""Callers, their rights, quotas and rate limits, and the audit log. May import `base`."""
