# SPDX-License-Identifier: Apache-2.0
"""The control plane's service, as a training host sees it: `client.Session`."""
