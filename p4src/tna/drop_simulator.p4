// SPDX-License-Identifier: Apache-2.0
// DropSimulator: loses packets on purpose, for experiments.
//
// A port for which the controller has set a threshold loses threshold / 2^32 of its packets in this direction, in steps
// of 2^-15; 2^32 - 1 loses all.
//   on       0: nothing is lost
//   margin   not 0: the packet is lost
//   surplus  bytes that a counter of this direction counts beside the frame's
control DropSimulator(in bit<1> on, in port_t port, out bit<16> margin)(bit<32> surplus) {
    Counter<bit<64>, port_t>(512, CounterType_t.PACKETS_AND_BYTES) losses;
    Random<bit<15>>() random;

    bit<16> limit = 0;
    bit<16> draw = 0;

    action lose(bit<32> threshold) {
        limit = threshold[31:16];
    }

    table loss_rates {
        key = { port : exact @name("port"); }
        actions = { lose; @defaultonly NoAction; }
        default_action = NoAction;
        size = 512;
    }

    // A table, because otherwise the compiler repeats the subtraction in every condition on `margin`: there is no room.
    @hidden action compare() { margin = limit |-| draw; }
    @hidden table lots {
        actions = { compare; }
        const default_action = compare;
    }

    apply {
        draw[15:1] = random.get();  // even, so always below the largest limit
        if (on == 1) {
            loss_rates.apply();
        }
        lots.apply();
        if (margin != 0) {
            losses.count(port, surplus);
        }
    }
}
