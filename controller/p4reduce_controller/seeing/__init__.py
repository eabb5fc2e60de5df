# SPDX-License-Identifier: Apache-2.0
"""What is told of jobs and switches: messages, metrics, logs, traces and pages."""
