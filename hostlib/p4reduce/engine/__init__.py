# SPDX-License-Identifier: Apache-2.0
"""The engine in Python, the base class that it shares with the engine in C, and the handles of collectives."""
