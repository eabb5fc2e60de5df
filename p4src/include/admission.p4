// SPDX-License-Identifier: Apache-2.0
// Only a member of a job reaches a slot, and only a slot of its job's pool: whose packet is it, and which half's?
control Admission(in headers_t hdr, inout metadata_t meta) {
    DIRECT_COUNTER(counted);  // what each member has sent that reached this table

    action admit(bit<32> worker_bit, bit<32> full_bitmap, bit<16> pool_base, bit<16> pool_halves, bit<16> group) {
        COUNT_DIRECTLY(counted)
        meta.admitted = 1;
        meta.worker_bit = worker_bit;
        meta.full_bitmap = full_bitmap;
        meta.job_group = group;
        meta.half = (half_t)(pool_base + hdr.aggregation.slot);
        meta.room = pool_halves |-| hdr.aggregation.slot;
    }

    table jobs {
        key = {
            meta.ingress_port          : exact @name("ingress_port");
            hdr.ipv4.src               : exact @name("source_ip");
            hdr.udp.src_port           : exact @name("source_port");
            hdr.aggregation.job        : exact @name("job");
            hdr.aggregation.generation : exact @name("generation");
            meta.member                : exact @name("worker");
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

// What that means for a packet that is to reach a slot.
control Verdict(in headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.admitted == 0) {
            meta.outcome = OUTCOME_NOT_ADMITTED;
        } else if (meta.room == 0 || hdr.aggregation.slot[0:0] != hdr.aggregation.seq[0:0]) {
            meta.outcome = OUTCOME_BAD_SLOT;
        }
    }
}
