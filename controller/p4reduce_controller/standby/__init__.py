# SPDX-License-Identifier: Apache-2.0
"""Several controllers: which serves, and what the others answer. Uses all but the commands."""
