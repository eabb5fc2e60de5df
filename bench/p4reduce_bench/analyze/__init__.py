# SPDX-License-Identifier: Apache-2.0
"""`p4reduce analyze`: the sparsity of gradients, and the time that it saves."""
