# SPDX-License-Identifier: Apache-2.0
"""The controller: it admits jobs, and programs the switches for them over P4Runtime."""
