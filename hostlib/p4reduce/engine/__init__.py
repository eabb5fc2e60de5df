# SPDX-License-Identifier: Apache-2.0
"""The engine in Python, what it has in common with the one in C, and the handles of its operations."""
