# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench gradients`: the sparsity of real architectures' gradients, and the time of their reduction."""
