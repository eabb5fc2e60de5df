// SPDX-License-Identifier: Apache-2.0
// The control interface of the native switch, for Python. All functions except opening and closing are thread safe.
// Functions of type int return 0 or a negative errno.
#ifndef NATIVE_H
#define NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define NATIVE_API __attribute__((visibility("default")))

struct native_switch;
struct plane;

// --- a switch: ports, threads, and the program that they run ---------------------------------------------------------

// Creates a switch with 0 to 64 threads; ports need at least one. Returns NULL without memory or file descriptors.
NATIVE_API struct native_switch *native_open(unsigned threads);
// Stops the threads and closes the ports. Remaining planes are freed without a switch (NULL).
NATIVE_API void native_close(struct native_switch *native);

// Adds a port, before `native_start`. `ip`: the two words of an address, as in a key. `*udp_port`: 0 for any free port,
// whose number is then stored there. Each message of a socket is a frame; the switch owns the socket after the function
// has returned 0.
NATIVE_API int native_add_udp(struct native_switch *native, unsigned port, const uint64_t *ip, uint16_t *udp_port);
NATIVE_API int native_add_ethernet(struct native_switch *native, unsigned port, const char *interface);
NATIVE_API int native_add_socket(struct native_switch *native, unsigned port, int descriptor);
// The socket of a port that belongs to one thread, which stays the switch's, or -ENOENT. A packet socket may be bound
// to another interface while the switch runs.
NATIVE_API int native_port_descriptor(struct native_switch *native, unsigned port);
// Starts the threads, which process packets from now on.
NATIVE_API int native_start(struct native_switch *native);
// Ends the threads, and every `native_packet_in`.
NATIVE_API void native_stop(struct native_switch *native);

// A frame from the controller, packet-out header first. Returns 0, or -EMSGSIZE for one that is too long.
NATIVE_API int native_packet_out(struct native_switch *native, const uint8_t *frame, size_t length);
#define NATIVE_MAX_FRAME (80 << 10)

// Waits for a frame to the controller. Returns its length, or -ESHUTDOWN after `native_stop`; `frame` has room for
// NATIVE_MAX_FRAME bytes.
NATIVE_API long native_packet_in(struct native_switch *native, uint8_t *frame);

// `counts`: the packets that a port has received, sent, and dropped because it could not send them.
NATIVE_API int native_port_counts(struct native_switch *native, unsigned port, uint64_t *counts);
// `counts`: frames to ports that do not exist, and packet-ins dropped because the queue was full.
NATIVE_API void native_lost_counts(struct native_switch *native, uint64_t *counts);

// --- a program -------------------------------------------------------------------------------------------------------

// Writes the program that the C code implements to `text`, which has `size` bytes, as JSON: the content of program.h.
// Lists are in the order of ids. Returns the length, or -ENOSPC.
NATIVE_API long native_program(char *text, size_t size);

// Returns NULL without memory.
NATIVE_API struct plane *native_plane_create(struct native_switch *native, unsigned lanes, unsigned block_size,
                                             unsigned halves, unsigned cpu_port, unsigned max_growth);
NATIVE_API void native_plane_free(struct native_switch *native, struct plane *plane);
// Processes packets with this plane from now on. NULL: drops them.
NATIVE_API void native_run(struct native_switch *native, struct plane *plane);

// Tables, actions and counters are numbered as in program.h. `key` has KEY_WORDS words, `arguments` MAX_ARGUMENTS.
NATIVE_API int native_insert(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                             unsigned action, const uint64_t *arguments);
NATIVE_API int native_modify(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                             unsigned action, const uint64_t *arguments);
NATIVE_API int native_delete(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key);
NATIVE_API int native_set_miss(struct native_switch *native, struct plane *plane, unsigned table, unsigned action,
                               const uint64_t *arguments);
// `replicas`: pairs of port and instance.
NATIVE_API int native_set_group(struct native_switch *native, struct plane *plane, unsigned group,
                                const uint16_t *replicas, size_t count);
// `count`: packets, bytes.
NATIVE_API int native_read_counter(struct native_switch *native, struct plane *plane, unsigned counter, unsigned index,
                                   uint64_t *count);
NATIVE_API int native_write_counter(struct native_switch *native, struct plane *plane, unsigned counter, unsigned index,
                                    const uint64_t *count);

// Access the direct counter of an entry in TABLE_JOBS. Return -ENOENT if there is no such entry.
NATIVE_API int native_read_member(struct native_switch *native, struct plane *plane, const uint64_t *key,
                                  uint64_t *count);
NATIVE_API int native_write_member(struct native_switch *native, struct plane *plane, const uint64_t *key,
                                   const uint64_t *count);

// How many HELLOs an ingress port may send to the controller: `limit` is tokens a second, and tokens, of a bucket that
// is full now; NULL: any number, as at first. Returns 0, or -ERANGE for a port or number that is too large.
NATIVE_API int native_limit_hellos(struct native_switch *native, struct plane *plane, unsigned port,
                                   const uint64_t *limit);
// From now on it is this time for the limits, in nanoseconds, until it is set again; 0: that of the machine.
NATIVE_API void native_set_time(struct native_switch *native, struct plane *plane, uint64_t now);

// Runs one frame through the plane, without the switch's ports. What comes out is at `outputs` until the next call: for
// each frame its port and length, 32 bits each, and its bytes. Returns the size of it all, or a negative errno.
NATIVE_API long native_process(struct native_switch *native, struct plane *plane, unsigned port, const uint8_t *frame,
                               size_t length, const uint8_t **outputs);

#endif
