// SPDX-License-Identifier: Apache-2.0
// The program as it stands in p4src, one packet at a time: what every port uses for whatever it has no faster way for.
#ifndef NATIVE_PIPELINE_H
#define NATIVE_PIPELINE_H

#include "context.h"

// Processes the frame at `context_frame`, which came in at `port`, and emits what comes of it.
void pipeline_process(struct context *context, unsigned port, size_t length);

#endif
