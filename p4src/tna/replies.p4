// SPDX-License-Identifier: Apache-2.0
// Replies: rewrites the packet into the reply that its outcome asks for, or drops it.
//
// One table chooses among all replies, because a stage has room for 16 tables only.
control Replies(inout headers_t hdr, inout metadata_t meta) {
#include "../include/reply_actions.p4"

    @hidden action disagreement_to_group() {
        disagreement();
        error_to_group();
    }
    @hidden action disagreement_to_parent() {
        disagreement();
        to_parent(OP_ERROR);
    }
    @hidden action pass_to_group() {
        without_values(hdr.keys[0].key);
        error_to_group();
    }
    @hidden action pass_to_parent() {
        without_values(hdr.keys[0].key);
        to_parent(OP_ERROR);
    }
    @hidden table reply {
        key = {
            meta.outcome       : ternary;
            meta.from_parent   : ternary;
            meta.below         : ternary;
            hdr.aggregation.op : ternary;
        }
        actions = {
            result_to_group; result_to_sender; partial_sums; status_to_group; status_to_sender; disagreement_to_group;
            disagreement_to_parent; pass_to_group; pass_to_parent; tell_state; to_controller; drop;
        }
        const entries = {
            (OUTCOME_COMPLETED, _, _, _)       : result_to_group();
            (OUTCOME_SENT_UP,   _, _, _)       : partial_sums();
            (OUTCOME_REPLAYED,  _, _, _)       : result_to_sender();
            (OUTCOME_AHEAD,     1, _, _)       : status_to_group();
            (OUTCOME_AHEAD,     0, _, _)       : status_to_sender();
            (OUTCOME_MISMATCH,  1, _, _)       : pass_to_group();
            (OUTCOME_MISMATCH,  0, 1, OP_DATA) : disagreement_to_parent();
            (OUTCOME_MISMATCH,  0, 1, _)       : pass_to_parent();
            (OUTCOME_MISMATCH,  0, 0, OP_DATA) : disagreement_to_group();
            (OUTCOME_MISMATCH,  0, 0, _)       : pass_to_group();
            (OUTCOME_QUERY,     _, _, _)       : tell_state();
            (OUTCOME_HELLO,     _, _, _)       : to_controller();
            (OUTCOME_RESET,     _, _, _)       : to_controller();
        }
        const default_action = drop;
        size = 16;
    }

    apply {
        reply.apply();
    }
}
