// SPDX-License-Identifier: Apache-2.0
// Admission: a packet reaches a slot only if its sender is a worker of the job that it names.
//
// The sender is known by its ingress port, its VLAN, its address and the index and generation in the packet, all of which
// must be those of one entry. The entry gives the worker's bit and the job's pool. A packet that hits none has `admitted` 0.
control Admission(in headers_t hdr, inout metadata_t meta) {
    DIRECT_COUNTER(counted);  // packets and bytes of each worker that reached this table

    action admit(bit<32> worker_bit, bit<32> full_bitmap, bit<16> pool_base, bit<16> pool_halves, bit<16> group) {
        COUNT_DIRECTLY(counted)
        meta.admitted = 1;
        meta.worker_bit = worker_bit;
        meta.full_bitmap = full_bitmap;
        meta.job_group = group;
        meta.half = (half_t)(pool_base + hdr.aggregation.slot);
        meta.room = pool_halves |-| hdr.aggregation.slot;  // saturates: 0 for a slot behind the pool's end
    }

    table jobs {
        key = {
            meta.ingress_port          : exact @name("ingress_port");
#ifdef IPV6
            meta.source                : exact @name("source_ip");
#else
            hdr.ipv4.src               : exact @name("source_ip");
#endif
            hdr.udp.src_port           : exact @name("source_port");
            hdr.aggregation.job        : exact @name("job");
            hdr.aggregation.generation : exact @name("generation");
            meta.member                : exact @name("worker");
#ifdef TAGS
            meta.vlan                  : exact @name("vlan");
#endif
        }
        actions = { admit; @defaultonly NoAction; }
        default_action = NoAction;
        counters = counted;
        size = 4096;
    }

    apply {
        jobs.apply();
    }
}
