# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the status page and metrics, and the page's files.

May import `settings` and what that may import.
"""
