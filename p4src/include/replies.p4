// SPDX-License-Identifier: Apache-2.0
// Replies: rewrites the packet into the reply that its outcome asks for, or drops it.
control Replies(inout headers_t hdr, inout metadata_t meta) {
#include "reply_actions.p4"

    apply {
        if (meta.complete == 1) {
            result_to_group();
#ifdef LEAF
        } else if (meta.send_up == 1) {
            partial_sums();
#endif
        } else if (meta.outcome == OUTCOME_REPLAYED) {
            result_to_sender();
        } else if (meta.outcome == OUTCOME_AHEAD) {
#ifdef LEAF
            if (meta.from_parent == 1) {
                status_to_group();
            } else
#endif
            status_to_sender();
        } else if (meta.outcome == OUTCOME_MISMATCH) {
            if (hdr.aggregation.op == OP_ERROR) {
                without_values(hdr.keys[0].key);
            } else {
                disagreement();
            }
#ifdef LEAF
            if (meta.below == 1 && meta.from_parent == 0) {
                to_parent(OP_ERROR);
            } else
#endif
            error_to_group();
        } else if (meta.outcome == OUTCOME_QUERY) {
            tell_state();
        } else if (meta.outcome == OUTCOME_HELLO || meta.outcome == OUTCOME_RESET) {
            to_controller();
        } else {
            drop();
        }
    }
}
