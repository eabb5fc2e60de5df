// SPDX-License-Identifier: Apache-2.0
// A capture of all packets that arrive: the format of pcap, draft-ietf-opsawg-pcap, with nanoseconds.
#include <errno.h>

#include "network.h"

enum { MAGIC_NANOSECONDS = 0xA1B23C4D, LINKTYPE_ETHERNET = 1, NS_PER_S = 1000000000, PS_PER_NS = 1000 };

int simulator_capture(struct simulation *simulation, const char *path, uint32_t snap) {
    if (simulation->capture != NULL)
        return -EBUSY;
    simulation->capture = fopen(path, "wb");
    if (simulation->capture == NULL)
        return -errno;
    simulation->snap = snap;
    const uint32_t head[] = {MAGIC_NANOSECONDS, 4 << 16 | 2, 0, 0, snap, LINKTYPE_ETHERNET};
    fwrite(head, sizeof head, 1, simulation->capture);
    return 0;
}

int simulator_end_capture(struct simulation *simulation) {
    FILE *file = simulation->capture;
    simulation->capture = NULL;
    if (file == NULL)
        return 0;
    const int failed = ferror(file);
    return fclose(file) != 0 || failed ? -EIO : 0;
}

void capture_packet(struct simulation *simulation, const struct packet *packet) {
    const uint64_t ns = simulation->now / PS_PER_NS;
    const uint32_t length = (uint32_t)packet->length, kept = length < simulation->snap ? length : simulation->snap;
    const uint32_t head[] = {(uint32_t)(ns / NS_PER_S), (uint32_t)(ns % NS_PER_S), kept, length};
    fwrite(head, sizeof head, 1, simulation->capture);
    fwrite(packet->frame, kept, 1, simulation->capture);
}
