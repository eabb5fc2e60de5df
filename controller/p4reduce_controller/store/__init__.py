# SPDX-License-Identifier: Apache-2.0
"""The jobs that run, as kept for a later controller, and the file for them.

May import `jobs` and what that may import.
"""
