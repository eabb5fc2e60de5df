// SPDX-License-Identifier: Apache-2.0
// The general path: the controls of the P4 program in their order, one packet at a time.
#ifndef NATIVE_PIPELINE_H
#define NATIVE_PIPELINE_H

#include "context.h"

// Processes the frame at `context_frame`, which arrived at `port`, and emits the resulting frames.
void pipeline_process(struct context *context, unsigned port, size_t length);

#endif
