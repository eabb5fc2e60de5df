// SPDX-License-Identifier: Apache-2.0
// The registers of one lane: the smallest key that the workers have announced, and a sum for each value of its block.
//
// A key is the index of the worker's next non-zero block in the lane, so the minimum is the block of the next round
// (OmniReduce, SIGCOMM 2021). `keep` 0 discards what a register has from an earlier round.
control Key(inout bit<32> key, in bit<32> half, in bit<32> keep) {
    register<bit<32>>(HALVES) keys;

    apply {
        bit<32> least;
        keys.read(least, half);
        least = least | ~keep;
        key = least < key ? least : key;
        keys.write(half, key);
    }
}

control Value(inout bit<32> value, in bit<32> half, in bit<32> keep) {
    register<bit<32>>(HALVES) sums;

    apply {
        bit<32> sum;
        sums.read(sum, half);
        value = value + (sum & keep);
        sums.write(half, value);
    }
}

control Lane(inout values_h values, in bit<1> add, in bit<1> touch, in bit<32> half, in bit<32> keep) {
#define VALUE_INSTANCE(i) Value() value##i;
    FOR_EACH_VALUE(VALUE_INSTANCE)

    action clear() {
        values.setValid();
#define CLEAR_VALUE(i) values.v##i = 0;
        FOR_EACH_VALUE(CLEAR_VALUE)
    }

    apply {
        if (touch == 1) {
            if (add == 0) {
                clear();
            }
#define APPLY_VALUE(i) value##i.apply(values.v##i, half, keep);
            FOR_EACH_VALUE(APPLY_VALUE)
        }
    }
}
