// SPDX-License-Identifier: Apache-2.0
// The engine of a program that `p4reduce exec` has started. hostlib/p4reduce/commands/launching.py writes the variable
// that is read here, as words of the form "name=value".
#include "base/structures.h"
#include "link/link.h"
#include "p4reduce.h"
#include "wire/constants.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "P4REDUCE_SEAT"

enum { MOST_BYTES = 2048 };

struct seat {
    p4reduce_membership membership;
    p4reduce_options options;
    uint8_t headers[UDP_IPV6_HEADERS_SIZE];
    uint32_t socket, more_sockets[MAX_AGGREGATORS];
    uint32_t more_jobs[MAX_THREADS], more_job_count;
    uint32_t jobs[MAX_AGGREGATORS + 1], job_count;
    char words[MOST_BYTES];
};

static bool parse_wide(const char *text, uint64_t *number) {
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

static bool parse_number(const char *text, uint32_t *number) {
    uint64_t value;
    const bool good = parse_wide(text, &value) && value <= UINT32_MAX;
    *number = (uint32_t)value;
    return good;
}

static bool parse_headers(const char *text, uint8_t *headers) {
    const size_t size = strlen(text) / 2;
    if (strlen(text) % 2 != 0 || size > UDP_IPV6_HEADERS_SIZE)
        return false;
    for (size_t i = 0; i < size; i++) {
        const char digits[] = {text[2 * i], text[2 * i + 1], '\0'};
        char *end;
        headers[i] = (uint8_t)strtoul(digits, &end, 16);
        if (*end != '\0')
            return false;
    }
    return size == frame_headers_size(headers);
}

// Parses numbers that are separated by commas.
static bool parse_list(char *text, uint32_t *numbers, uint32_t most, uint32_t *count) {
    char *number;
    while ((number = strsep(&text, ",")) != NULL)
        if (*count == most || !parse_number(number, &numbers[(*count)++]))
            return false;
    return true;
}

static bool parse_peers(char *text, p4reduce_membership *m) {
    uint32_t ranks[MAX_WORKERS];
    if (*text != '\0' && !parse_list(text, ranks, MAX_WORKERS, &m->peer_count))
        return false;
    for (uint32_t i = 0; i < m->peer_count; i++) {
        if (ranks[i] > UINT16_MAX)
            return false;
        m->peers[i] = (uint16_t)ranks[i];
    }
    return true;
}

static bool parse_word(struct seat *seat, const char *name, char *value) {
    p4reduce_membership *m = &seat->membership;
    const struct {
        const char *name;
        uint32_t *target;
    } numbers[] = {
        {"generation", &m->generation}, {"rank", &m->rank},
        {"world_size", &m->world_size}, {"slots", &m->slots},
        {"lanes", &m->lanes},           {"block_size", &m->block_size},
        {"first_seq", &m->first_seq},   {"link", &seat->options.link},
        {"socket", &seat->socket},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return parse_number(value, numbers[i].target);
    if (strcmp(name, "job") == 0) // the job's number, or number << 16 | generation at each aggregator
        return parse_list(value, seat->jobs, MAX_AGGREGATORS + 1, &seat->job_count);
    if (strcmp(name, "abort_secret") == 0)
        return parse_wide(value, &m->abort_secret);
    if (strcmp(name, "peers") == 0)
        return parse_peers(value, m);
    if (strcmp(name, "more_sockets") == 0)
        return parse_list(value, seat->more_sockets, MAX_AGGREGATORS, &seat->options.more_count);
    if (strcmp(name, "more_jobs") == 0)
        return parse_list(value, seat->more_jobs, MAX_THREADS - 1, &seat->more_job_count);
    if (strcmp(name, "headers") == 0) {
        seat->options.headers = seat->headers;
        return parse_headers(value, seat->headers);
    }
    if (strcmp(name, "switch") == 0)
        seat->options.switch_address = value;
    else if (strcmp(name, "local") == 0)
        seat->options.local_address = value;
    return true; // a word of a newer version
}

p4reduce_engine *p4reduce_open_from_environment(p4reduce_error *error) {
    const char *said = getenv(VARIABLE);
    struct seat seat = {.membership.size = sizeof seat.membership, .options.size = sizeof seat.options};
    if (said == NULL) {
        error_tell(error, P4REDUCE_INVALID, VARIABLE " is not set: start this program with `p4reduce exec -- program`");
        return NULL;
    }
    if (strlen(said) >= sizeof seat.words) {
        error_tell(error, P4REDUCE_INVALID, VARIABLE " has %zu characters: accepted are up to %zu", strlen(said),
                   sizeof seat.words - 1);
        return NULL;
    }
    strcpy(seat.words, said);
    char *rest = seat.words, *word;
    while ((word = strsep(&rest, " ")) != NULL) {
        char *value = strchr(word, '=');
        if (value == NULL || (*value = '\0', !parse_word(&seat, word, value + 1))) {
            error_tell(error, P4REDUCE_INVALID, VARIABLE ": cannot understand %s=%s", word,
                       value == NULL ? "" : value + 1);
            return NULL;
        }
    }
    seat.options.socket = (int32_t)seat.socket;
    seat.options.more_sockets = (const int32_t *)seat.more_sockets;
    seat.options.more_jobs = seat.more_jobs;
    seat.options.threads = seat.more_job_count + 1;
    seat.membership.job = seat.jobs[0];
    if (seat.job_count > 1) {
        if (seat.job_count != seat.options.more_count + 1) {
            error_tell(error, P4REDUCE_INVALID,
                       VARIABLE ": job has %" PRIu32 " numbers: accepted are 1 and %" PRIu32 ", one for each socket",
                       seat.job_count, seat.options.more_count + 1);
            return NULL;
        }
        seat.membership.job = seat.jobs[0] >> 16;
        seat.options.aggregator_jobs = seat.jobs;
    }
    return p4reduce_open(&seat.membership, &seat.options, error);
}
