/* SPDX-License-Identifier: Apache-2.0
 *
 * One slot of a switch, its two halves, and three workers (docs/protocol.md, sections 3 and 5).
 *
 * While `faulty`, the network is as bad as can be: whatever was ever sent may arrive at any time, any number of times, in
 * any order, or never. Then only what is sent from now on arrives, each packet once. Values are left out: a half counts
 * how often each worker was added. STATUS changes nothing, so it is left out too.
 *
 * The macros WITHOUT_... take one protection out each.
 */
#ifndef ROUNDS
#define ROUNDS 5
#endif
#define WORKERS 3
#define FIRST 2           /* seq of the first round; halves are reset to older ones */
#define LAST (FIRST + ROUNDS - 1)
#define ALL 7             /* the full bitmap */
#define BIT(n) (1 << (n))

byte at[WORKERS];         /* the round that the worker waits for, and sends; LAST + 1: it has them all */
byte results;             /* rounds of which a RESULT has left the switch */

byte up[WORKERS];         /* after the faults: rounds of which a DATA is on its way from this worker, */
byte down[WORKERS];       /* and of which a RESULT is on its way to this worker */

byte seq[2];
byte bitmap[2];
byte added[2 * WORKERS];  /* how often the half has added the worker: 2 is too often */
bool alien[2];            /* the half has added something of another round */

bool faulty = true;

#define DONE (at[0] > LAST && at[1] > LAST && at[2] > LAST)

inline add(half, worker, round) {
    if
    :: added[half * WORKERS + worker] < 2 -> added[half * WORKERS + worker]++
    :: else
    fi;
    bitmap[half] = bitmap[half] | BIT(worker);
    alien[half] = alien[half] || round != seq[half]
}

inline start(half, worker, round) {
    added[half * WORKERS] = 0; added[half * WORKERS + 1] = 0; added[half * WORKERS + 2] = 0;
    alien[half] = false;
    bitmap[half] = 0;
    seq[half] = round;
    add(half, worker, round)
}

/* What leaves the switch is right, or the model is wrong here and now. */
inline check(half) {
    assert(!alien[half]);
    assert(added[half * WORKERS] == 1 && added[half * WORKERS + 1] == 1 && added[half * WORKERS + 2] == 1)
}

inline answer(worker, round) {
    results = results | BIT(round);
    if
    :: faulty
    :: else -> down[worker] = down[worker] | BIT(round)
    fi
}

inline multicast(half) {
    check(half);
    answer(0, seq[half]);
    answer(1, seq[half]);
    answer(2, seq[half])
}

#ifdef WITHOUT_THE_SECOND_HALF
#define HALF(round) 0
#else
#define HALF(round) ((round) % 2)
#endif
#ifdef WITHOUT_THE_THIRD_WORKER
#define FULL 3
#else
#define FULL ALL
#endif
#ifdef WITHOUT_AGE
#define OLDER(round, half) false
#else
#define OLDER(round, half) ((round) < seq[half] || ((round) == seq[half] && bitmap[half] == 0))
#endif
#ifdef WITHOUT_ROUND_NUMBERS
#define NEWER(round, half) (bitmap[half] == FULL || bitmap[half] == 0)
#else
#define NEWER(round, half) ((round) != seq[half])
#endif
#ifdef WITHOUT_BITMAP
#define COUNTED(worker, half) false
#else
#define COUNTED(worker, half) (bitmap[half] & BIT(worker))
#endif

/* A DATA of `round` from `worker`, as p4src/bmv2/slot_state.p4 has it. STATUS changes nothing, so it is left out. */
inline receive(worker, round) {
    half = HALF(round);
    if
    :: OLDER(round, half)
    :: else ->
        if
        :: NEWER(round, half) ->
            start(half, worker, round);
            if
            :: bitmap[half] == FULL -> multicast(half)
            :: else
            fi
        :: else ->
            if
            :: !COUNTED(worker, half) ->
                add(half, worker, round);
                if
                :: bitmap[half] == FULL -> multicast(half)
                :: else
                fi
            :: COUNTED(worker, half) && bitmap[half] == FULL ->
#ifndef WITHOUT_REPLAY
                check(half);
                answer(worker, seq[half]);
#endif
                skip
            :: else
            fi
        fi
    fi
}

/* A RESULT of `round` at `worker`: the next round, or nothing. */
inline take(worker, round) {
    if
#ifdef WITHOUT_SEQ_AT_THE_WORKER
    :: at[worker] <= LAST -> assert(round == at[worker]); at[worker]++
#else
    :: at[worker] == round -> at[worker]++
#endif
    :: else
    fi
}

/* Chooses any member of a set that is not empty. */
inline choose(set, round) {
    round = FIRST;
    do
    :: set & BIT(round) -> break
    :: set >> (round + 1) -> round++
    od
}

/* The network while it is faulty. */
proctype Chaos() {
    byte worker, round, half;
end:
    do
    :: atomic {
        select(worker : 0 .. 2);
        select(round : FIRST .. LAST);
        if
        :: round <= at[worker] -> receive(worker, round)
        :: results & BIT(round) -> take(worker, round)
        :: else
        fi;
        worker = 0; round = 0; half = 0
    }
    :: faulty = false -> break
    od
}

/* The worker's time-out, which may come at any time: nothing else makes it send. While faults last, Chaos sends. */
proctype Timer(byte worker) {
    byte told = 0;
    !faulty;
#ifdef WITHOUT_RETRANSMISSION
    told = at[worker];
#endif
    do
    :: atomic { at[worker] <= LAST && at[worker] != told && !(up[worker] & BIT(at[worker])) ->
        up[worker] = up[worker] | BIT(at[worker]);
#ifdef WITHOUT_RETRANSMISSION
        told = at[worker]
#endif
    }
    :: at[worker] > LAST -> break
    od
}

/* The network between a worker and the switch, both ways, in any order. */
proctype Link(byte worker) {
    byte round, half;
end:
    do
    :: atomic { down[worker] != 0 ->
        choose(down[worker], round);
        down[worker] = down[worker] & ~BIT(round);
        take(worker, round);
        round = 0
    }
    :: atomic { down[worker] == 0 && up[worker] != 0 ->
        choose(up[worker], round);
        up[worker] = up[worker] & ~BIT(round);
        receive(worker, round);
        round = 0; half = 0
    }
    od
}

init {
    atomic {
        seq[0] = FIRST - 2; seq[1] = FIRST - 1;
        at[0] = FIRST; at[1] = FIRST; at[2] = FIRST;
        run Chaos();
        run Timer(0); run Timer(1); run Timer(2);
        run Link(0); run Link(1); run Link(2)
    }
}

/* Once faults are over, every operation ends. */
ltl ends { (<> !faulty) -> <> DONE }
