// SPDX-License-Identifier: Apache-2.0
// The engine of a program that `p4reduce exec` has started: hostlib/p4reduce/commands/launching.py writes what is read
// here, as words "name=value" in one variable.
#include "base/structures.h"
#include "p4reduce.h"
#include "wire/constants.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "P4REDUCE_SEAT"

enum { MOST_BYTES = 2048, HEADERS_BYTES = 42 };

struct seat {
    p4reduce_membership membership;
    p4reduce_options options;
    uint8_t headers[HEADERS_BYTES];
    int32_t more_sockets[MAX_AGGREGATORS];
    uint32_t more_jobs[MAX_THREADS], more_job_count;
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
    if (strlen(text) != 2 * HEADERS_BYTES)
        return false;
    for (size_t i = 0; i < HEADERS_BYTES; i++) {
        const char digits[] = {text[2 * i], text[2 * i + 1], '\0'};
        char *end;
        headers[i] = (uint8_t)strtoul(digits, &end, 16);
        if (*end != '\0')
            return false;
    }
    return true;
}

// Ranks with commas between, or none.
static bool parse_peers(char *text, p4reduce_membership *m) {
    char *number;
    uint32_t rank;
    if (*text == '\0')
        return true;
    while ((number = strsep(&text, ",")) != NULL) {
        if (m->peer_count == sizeof m->peers || !parse_number(number, &rank) || rank > UINT8_MAX)
            return false;
        m->peers[m->peer_count++] = (uint8_t)rank;
    }
    return true;
}

static bool parse_sockets(struct seat *seat, char *text) {
    char *number;
    uint32_t parsed;
    seat->options.more_sockets = seat->more_sockets;
    while ((number = strsep(&text, ",")) != NULL) {
        if (seat->options.more_count == MAX_AGGREGATORS || !parse_number(number, &parsed))
            return false;
        seat->more_sockets[seat->options.more_count++] = (int32_t)parsed;
    }
    return true;
}

static bool parse_jobs(struct seat *seat, char *text) {
    char *number;
    seat->options.more_jobs = seat->more_jobs;
    while ((number = strsep(&text, ",")) != NULL) {
        if (seat->more_job_count == MAX_THREADS - 1 || !parse_number(number, &seat->more_jobs[seat->more_job_count++]))
            return false;
    }
    seat->options.threads = seat->more_job_count + 1;
    return true;
}

static bool parse_word(struct seat *seat, const char *name, char *value) {
    p4reduce_membership *m = &seat->membership;
    const struct {
        const char *name;
        uint32_t *place;
    } numbers[] = {
        {"job", &m->job},
        {"generation", &m->generation},
        {"rank", &m->rank},
        {"world_size", &m->world_size},
        {"slots", &m->slots},
        {"lanes", &m->lanes},
        {"block_size", &m->block_size},
        {"first_seq", &m->first_seq},
        {"link", &seat->options.link},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return parse_number(value, numbers[i].place);
    if (strcmp(name, "abort_secret") == 0)
        return parse_wide(value, &m->abort_secret);
    if (strcmp(name, "peers") == 0)
        return parse_peers(value, m);
    if (strcmp(name, "socket") == 0) {
        uint32_t number;
        const bool good = parse_number(value, &number);
        seat->options.socket = (int32_t)number;
        return good;
    }
    if (strcmp(name, "more_sockets") == 0)
        return parse_sockets(seat, value);
    if (strcmp(name, "more_jobs") == 0)
        return parse_jobs(seat, value);
    if (strcmp(name, "headers") == 0) {
        seat->options.headers = seat->headers;
        return parse_headers(value, seat->headers);
    }
    if (strcmp(name, "switch") == 0)
        seat->options.switch_address = value;
    else if (strcmp(name, "local") == 0)
        seat->options.local_address = value;
    return true; // what a newer version says besides
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
    return p4reduce_open(&seat.membership, &seat.options, error);
}
