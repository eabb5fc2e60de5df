// SPDX-License-Identifier: Apache-2.0
// DropSimulator: loses packets on purpose, for experiments.
//
// A port for which the controller has set a threshold loses threshold / 2^32 of its packets in this direction; 2^32 - 1
// loses all.
control DropSimulator(in port_t port, out bit<1> lost) {
    counter(512, CounterType.packets_and_bytes) losses;

    action lose(bit<32> threshold) {
        bit<32> draw;
        random(draw, 0, 0xFFFFFFFE);
        lost = draw < threshold ? 1w1 : 1w0;
    }

    table loss_rates {
        key = { port : exact @name("port"); }
        actions = { lose; @defaultonly NoAction; }
        default_action = NoAction;
        size = 512;
    }

    apply {
        lost = 0;
        loss_rates.apply();
        if (lost == 1) {
            losses.count((bit<32>)port);
        }
    }
}
