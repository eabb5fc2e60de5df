// SPDX-License-Identifier: Apache-2.0
// One value in one register.
control Value(inout bit<32> value, in metadata_t meta) {
    Register<bit<32>, bit<16>>(HALVES, 0) sums;

    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) set_sum = {
        void apply(inout bit<32> sum, out bit<32> result) {
            result = 0;
            sum = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) add_to_sum = {
        void apply(inout bit<32> sum, out bit<32> result) {
            sum = sum + value;
            result = sum;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sums) read_sum = {
        void apply(inout bit<32> sum, out bit<32> result) {
            result = sum;
        }
    };

    @hidden action start() { set_sum.execute(meta.half); }
    @hidden action add() { value = add_to_sum.execute(meta.half); }
    @hidden action read() { value = read_sum.execute(meta.half); }
    SUMS_TABLE

    apply {
        sum.apply();
    }
}
