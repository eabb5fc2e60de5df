# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce`: through the switch beside other libraries, on the same inputs and the same links."""
