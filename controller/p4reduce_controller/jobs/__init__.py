# SPDX-License-Identifier: Apache-2.0
"""Jobs, their queue and their placement, decided without I/O. May import `tenants` and `switches`."""
