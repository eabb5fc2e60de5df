// SPDX-License-Identifier: Apache-2.0
// Decision: the packet's outcome, from the bits that the slot state returned, and whether the round is complete.
// For a program that runs only at the root of a tree.
control Decision(inout metadata_t meta) {
    @hidden action compare() {
        meta.missing = meta.bitmap ^ meta.others;
        meta.lacking = meta.bitmap ^ meta.full_bitmap;
    }

    @hidden action become(bit<8> outcome) { meta.outcome = outcome; }
    @hidden action complete() {
        meta.outcome = OUTCOME_COMPLETED;
        meta.complete = 1;
    }
    @hidden table outcome {
        key = {
            meta.step       : ternary;
            meta.newer      : ternary;
            meta.live       : ternary;
            meta.same       : ternary;
            meta.missing    : ternary;
            meta.lacking    : ternary;
            meta.worker_bit : ternary;
            meta.bitmap     : ternary;
        }
        actions = { become; complete; @defaultonly NoAction; }
        const entries = {
            (STEP_RESET, _, _, _, _, _, _, _) : become(OUTCOME_RESET);
            (STEP_QUERY, _, _, _, _, _, _, _) : become(OUTCOME_QUERY);
            (STEP_DATA,  1, _, _, 0, _, _, _) : complete();
            (STEP_DATA,  1, _, _, _, _, _, _) : become(OUTCOME_STARTED);
            (STEP_DATA,  0, 0, _, _, _, _, _) : become(OUTCOME_STALE);
            (STEP_DATA,  0, 1, 0, _, _, _, _) : become(OUTCOME_MISMATCH);
            (STEP_DATA,  0, 1, 1, _, 0, _, _) : become(OUTCOME_REPLAYED);
#define AHEAD_ROW(w) (STEP_DATA, 0, 1, 1, _, _, ALREADY_ADDED(w)) : become(OUTCOME_AHEAD);
            REPEAT_32(AHEAD_ROW)
            (STEP_DATA,  0, 1, 1, 0, _, _, _) : complete();
            (STEP_DATA,  0, 1, 1, _, _, _, _) : become(OUTCOME_ADDED);
        }
        const default_action = NoAction;
        size = 64;
    }

    @hidden action without_notes() { meta.fingerprint[2:1] = 0; }

    apply {
        compare();
        outcome.apply();
        without_notes();
    }
}
