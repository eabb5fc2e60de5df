// SPDX-License-Identifier: Apache-2.0
// Two values in one register. On Tofino 2 a stateful ALU returns both sums at once. On Tofino 1 it returns one: the
// reply recirculates, and its second pass reads the other (as in SwitchML, NSDI 2021).
struct pair_t {
    bit<32> first;
    bit<32> second;
}

control Pair(inout bit<32> first, inout bit<32> second, in metadata_t meta) {
    Register<pair_t, bit<16>>(HALVES, {0, 0}) sums;

    RegisterAction<pair_t, bit<16>, bit<32>>(sums) set_sums = {
        void apply(inout pair_t sum, out bit<32> result) {
            result = 0;
            sum.first = first;
            sum.second = second;
        }
    };
    @hidden action start() { set_sums.execute(meta.half); }

#ifdef SECOND_PASS
    RegisterAction<pair_t, bit<16>, bit<32>>(sums) add_to_sums = {
        void apply(inout pair_t sum, out bit<32> result) {
            sum.first = sum.first + first;
            sum.second = sum.second + second;
            result = sum.first;
        }
    };
    RegisterAction<pair_t, bit<16>, bit<32>>(sums) read_first = {
        void apply(inout pair_t sum, out bit<32> result) {
            result = sum.first;
        }
    };
    RegisterAction<pair_t, bit<16>, bit<32>>(sums) read_second = {
        void apply(inout pair_t sum, out bit<32> result) {
            result = sum.second;
        }
    };
    @hidden action add() { first = add_to_sums.execute(meta.half); }
    @hidden action read() { first = read_first.execute(meta.half); }
    @hidden action harvest() { second = read_second.execute(meta.half); }
#else
    RegisterAction2<pair_t, bit<16>, bit<32>, bit<32>>(sums) add_to_sums = {
        void apply(inout pair_t sum, out bit<32> result, out bit<32> result2) {
            sum.first = sum.first + first;
            sum.second = sum.second + second;
            result = sum.first;
            result2 = sum.second;
        }
    };
    RegisterAction2<pair_t, bit<16>, bit<32>, bit<32>>(sums) read_sums = {
        void apply(inout pair_t sum, out bit<32> result, out bit<32> result2) {
            result = sum.first;
            result2 = sum.second;
        }
    };
    @hidden action add() { first = add_to_sums.execute(meta.half, second); }
    @hidden action read() { first = read_sums.execute(meta.half, second); }
#endif
    SUMS_TABLE

    apply {
        sum.apply();
    }
}
