# SPDX-License-Identifier: Apache-2.0
"""`p4reduce doctor`: what is wrong, seen from the host where it is asked, and what to do.

May import `commands`.
"""
