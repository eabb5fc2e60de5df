// SPDX-License-Identifier: Apache-2.0
#include "switch.h"

void switch_emit(struct native_switch *native, const struct plane *plane, struct thread *thread, unsigned port,
                 const uint8_t *frame, size_t length) {
    if (port == plane->layout.cpu_port)
        packet_ins_put(&native->packet_ins, frame, length);
    else if (native->ports[port] != NULL)
        native->ports[port]->kind->send(native->ports[port], thread, frame, length);
    else
        atomic_fetch_add_explicit(&native->undeliverable, 1, memory_order_relaxed);
}
