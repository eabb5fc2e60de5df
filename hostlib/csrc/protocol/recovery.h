// SPDX-License-Identifier: Apache-2.0
// Repair of losses: when a packet without a RESULT is sent again. It is TCP's RACK-TLP (RFC 8985), slot by slot.
//
// hostlib/p4reduce/protocol/recovery.py is the same in Python, and explains each rule. docs/protocol.md, 3.5, is the
// specification.
//
// Each slot has at most one packet without a RESULT, and the same bytes are sent until the RESULT comes:
//
// - Overtaken (RACK): a packet that was sent later to the same aggregator, and only once, has its RESULT. Then this
//   packet is sent again rtt + 4 rttvar after it was sent, where rtt is the time that the later packet took. Each costs
//   a share of the retransmit budget, which rounds refill slowly, and real losses at once.
// - Probe (TLP): nothing was sent and no round has ended for a time-out. The two oldest packets are sent again, and the
//   next time-out is doubled. Their answers tell a loss from a late rank.
//
//   state                    event                               next state
//   IDLE                     the round's packet is complete      QUEUED.
//   QUEUED                   its turn                            SENT.
//   SENT, RETRANSMITTED      overtaken or probed                 RETRANSMIT_QUEUED.
//   RETRANSMIT_QUEUED        its turn                            RETRANSMITTED.
//   all but IDLE and QUEUED  STATUS                              PARTIAL_ACK.
//   PARTIAL_ACK              overtaken or probed                 POLL_QUEUED.
//   POLL_QUEUED              its turn                            PARTIAL_ACK.
//   all but IDLE and QUEUED  RESULT                              IDLE.
//
// A packet that has its turn at once skips the queued state.
//
// C alone has super-packets (UDP GSO), which are many packets to the network, but one to this host's kernel. A software
// switch behind a virtual interface may see a super-packet as one huge frame, and drop it. So until one is known to
// arrive, packets are sent again singly; if only that helps, all packets are sent singly (`enum super_packets`).
#ifndef P4REDUCE_RECOVERY_H
#define P4REDUCE_RECOVERY_H

#include "protocol/sending.h"

enum { BACKOFF_LEVELS = 8 }; // for packets in PARTIAL_ACK

// The knowledge about super-packets on the path.
enum super_packets {
    SUPER_PACKETS_UNPROVED, // none is known to have arrived
    SUPER_PACKETS_LOST,     // many packets were only answered after they were sent again singly
    SUPER_PACKETS_ARRIVE,
};

// The packets to one aggregator. Those of other aggregators take other paths, so they overtake none of these.
struct path {
    // Slots whose packet is in the network, by back-off level. Each level is in the order of transmission, from `head`.
    struct unacked {
        struct slot *head, *tail;
    } unacked[BACKOFF_LEVELS];
    // RACK: transmission time and round trip of the packet sent last, among those sent once that have a RESULT.
    double rack_sent_at, rack_rtt;
};

// The retransmission of slots' packets: each is sent, and sent again until it is answered.
struct recovery {
    struct timer timer;
    struct sending sending;
    p4reduce_stats *stats;
    struct slot *slots;
    uint32_t slot_count;
    unsigned in_state[STATES]; // number of packets
    struct slot **due;         // room for all slots
    uint32_t aggregators;      // over which the slots are striped: slot s is at aggregator s mod `aggregators`
    struct path paths[MAX_AGGREGATORS];
    double last_activity; // when a round last ended, or a packet was last sent
    unsigned backoff;     // doublings of the probe time-out
    unsigned budget, budget_of_loss, max_budget;
    enum super_packets super_packets;
    unsigned super_packets_lost; // packets of super-packets that seem to be lost
};

// Returns false if there is no memory; recovery_close then frees the rest. `streams`: the job's number of streams.
bool recovery_open(struct recovery *recovery, struct slot *slots, uint32_t slot_count, uint32_t streams,
                   struct timer timer, p4reduce_stats *stats);
void recovery_close(struct recovery *recovery);

// Starts again with the first `slot_count` slots, none of which has a packet. The estimate of the round trip is kept.
void recovery_begin_anew(struct recovery *recovery, uint32_t slot_count);

// Sends the slot's packet for the first time on its path.
void recovery_send(struct recovery *recovery, struct slot *slot, double now);

// Takes the RESULT of the slot's packet. `completed`: whether it names this worker, which completed the round or sent
// its packet again. `marked`: whether a router has marked it, or a packet of its round.
void recovery_on_result(struct recovery *recovery, struct slot *slot, bool completed, bool marked, double now);

// Sends the slot's packet no more, and expects no answer to it.
void recovery_withdraw(struct recovery *recovery, struct slot *slot);

// Forgets the measurements of a path that has changed: the round trip, the window and the back-off.
void recovery_begin_path(struct recovery *recovery, double now);

// Takes an answer to an earlier round of the slot, which has its RESULT already.
void recovery_on_late_answer(struct slot *slot, uint32_t seq);

// Takes a STATUS: the switch has the slot's packet, and waits for other ranks. `counted`: bitmap of the workers that
// the switch has counted. `own`: whether it answers this worker's packet; a leaf tells all its workers what its parent
// told one of them.
void recovery_on_status(struct recovery *recovery, struct slot *slot, uint32_t counted, bool own, bool marked,
                        double now);

// Sends again what is due, and sends what has its turn.
void recovery_tick(struct recovery *recovery, double now);

// Returns when to call `recovery_tick` next.
double recovery_deadline(const struct recovery *recovery);

// Ends the job. `insist`: whether packets without a RESULT are still sent again.
void recovery_end(struct recovery *recovery, bool insist);

// Returns whether the packets of the outbox are to be sent without super-packets.
bool recovery_sends_singly(const struct recovery *recovery);

#endif
