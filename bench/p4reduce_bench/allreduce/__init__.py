# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce`: p4reduce and other libraries on the same inputs and the same links."""
