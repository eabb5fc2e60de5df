# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench gradients`: what real architectures' gradients look like, and what each system makes of them."""
