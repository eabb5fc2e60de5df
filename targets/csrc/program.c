// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <errno.h>
#include <stdio.h>

#include "wire/headers.h"

const struct program_action program_actions[ACTIONS] = {
    [NO_ACTION] = {"NoAction", ""},
    [ACTION_LOSE] = {"lose", "threshold:32"},
    [ACTION_OWN] = {"own", "mac:48"},
    [ACTION_ADMIT] = {"admit", "worker_bit:32 full_bitmap:32 pool_base:16 pool_halves:16 group:16"},
    [ACTION_FORWARD] = {"forward", "port:9"},
    [ACTION_FLOOD] = {"flood", "group:16"},
    [ACTION_DISCARD] = {"discard", ""},
    [ACTION_ROUTE] = {"route", "port:9 source_mac:48 next_hop_mac:48"},
    [ACTION_UNROUTABLE] = {"unroutable", ""},
    [ACTION_ADDRESS] = {"address", "mac:48 ip:128 udp_port:16"},
    [ACTION_ADDRESS_IN_VLAN] = {"address_in_vlan", "mac:48 ip:128 udp_port:16 vlan:12"},
    [ACTION_UPLINK] = {"uplink", "port:9 mac:48 ip:128 udp_port:16 worker:8"},
    [ACTION_FORGED] = {"forged", ""},
};

const struct program_table program_tables[TABLES] = {
    [TABLE_LOSS_IN] = {.name = "SwitchIngress.drop_simulator.loss_rates",
                       .key = "port:9:0:0",
                       .size = PORTS,
                       .actions = {ACTION_LOSE, NO_ACTION},
                       .action_count = 2,
                       .miss = NO_ACTION},
    [TABLE_OWN_ADDRESSES] = {.name = "SwitchIngress.own_address.own_addresses",
                             .key = "address:128:0:0",
                             .size = 64,
                             .actions = {ACTION_OWN, NO_ACTION},
                             .action_count = 2,
                             .miss = NO_ACTION},
    // The key is that of `key_of_member`.
    [TABLE_JOBS] = {.name = "SwitchIngress.aggregation.admission.jobs",
                    .key = "ingress_port:9:3:0 source_ip:128:0:0 source_port:16:2:16 job:16:2:0 generation:16:2:32 "
                           "worker:8:2:48 vlan:12:3:9",
                    .counts = true,
                    .size = MEMBERS,
                    .actions = {ACTION_ADMIT, NO_ACTION},
                    .action_count = 2,
                    .miss = NO_ACTION},
    [TABLE_MAC_ADDRESSES] = {.name = "SwitchIngress.forwarding.mac_addresses",
                             .key = "mac:48:0:0",
                             .size = 4096,
                             .actions = {ACTION_FORWARD, ACTION_FLOOD, ACTION_DISCARD},
                             .action_count = 3,
                             .miss = ACTION_DISCARD},
    [TABLE_ROUTER_MACS] = {.name = "SwitchIngress.forwarding.router_macs",
                           .key = "mac:48:0:0",
                           .size = 64,
                           .actions = {NO_ACTION},
                           .action_count = 1,
                           .miss = NO_ACTION},
    [TABLE_ROUTES] = {.name = "SwitchIngress.forwarding.ipv4_routes",
                      .key = "destination:32:0:0",
                      .lpm = true,
                      .size = 1024,
                      .actions = {ACTION_ROUTE, ACTION_UNROUTABLE},
                      .action_count = 2,
                      .miss = ACTION_UNROUTABLE},
    [TABLE_LOSS_OUT] = {.name = "SwitchEgress.drop_simulator.loss_rates",
                        .key = "port:9:0:0",
                        .size = PORTS,
                        .actions = {ACTION_LOSE, NO_ACTION},
                        .action_count = 2,
                        .miss = NO_ACTION},
    [TABLE_WORKERS] = {.name = "SwitchEgress.delivery.workers",
                       .key = "job:16:0:16 instance:16:0:0",
                       .size = 4096,
                       .actions = {ACTION_ADDRESS, ACTION_ADDRESS_IN_VLAN, NO_ACTION},
                       .action_count = 3,
                       .miss = NO_ACTION},
    [TABLE_UPLINKS] = {.name = "SwitchIngress.aggregation.uplink.uplinks",
                       .key = "job:16:0:0",
                       .size = 4096,
                       .actions = {ACTION_UPLINK, NO_ACTION},
                       .action_count = 2,
                       .miss = NO_ACTION},
    [TABLE_OWN_SOURCES] = {.name = "SwitchIngress.own_address.own_sources",
                           .key = "address:128:0:0",
                           .size = 64,
                           .actions = {ACTION_FORGED, NO_ACTION},
                           .action_count = 2,
                           .miss = NO_ACTION},
};

const struct program_array program_counters[COUNTERS] = {
    [COUNTER_LOSSES_IN] = {"SwitchIngress.drop_simulator.losses", PORTS},
    [COUNTER_OUTCOMES] = {"SwitchIngress.aggregation.outcomes", OUTCOMES},
    [COUNTER_LOSSES_OUT] = {"SwitchEgress.drop_simulator.losses", PORTS},
    [COUNTER_FORGERIES] = {"SwitchIngress.forgeries", PORTS},
};

const struct program_array program_hellos = {"SwitchIngress.aggregation.hellos", PORTS};

static void write_table(FILE *json, const struct program_table *table) {
    fprintf(json, "{\"name\": \"%s\", \"match\": \"%s\", \"key\": \"%s\", \"counts\": %s, \"size\": %u, \"miss\": %u",
            table->name, table->lpm ? "lpm" : "exact", table->key, table->counts ? "true" : "false", table->size,
            table->miss);
    fprintf(json, ", \"actions\": [");
    for (unsigned at = 0; at < table->action_count; at++)
        fprintf(json, "%s%u", at != 0 ? ", " : "", table->actions[at]);
    fprintf(json, "]}");
}

static void write_array(FILE *json, const struct program_array *array) {
    fprintf(json, "{\"name\": \"%s\", \"size\": %u}", array->name, array->size);
}

long program_write(char *text, size_t size) {
    FILE *json = fmemopen(text, size, "w");
    if (json == NULL)
        return -ENOSPC;
    fprintf(json, "{\"actions\": [");
    for (unsigned id = 0; id < ACTIONS; id++)
        fprintf(json, "%s{\"name\": \"%s\", \"parameters\": \"%s\"}", id != 0 ? ", " : "", program_actions[id].name,
                program_actions[id].parameters);
    fprintf(json, "], \"tables\": [");
    for (unsigned id = 0; id < TABLES; id++) {
        fprintf(json, "%s", id != 0 ? ", " : "");
        write_table(json, &program_tables[id]);
    }
    fprintf(json, "], \"counters\": [");
    for (unsigned id = 0; id < COUNTERS; id++) {
        fprintf(json, "%s", id != 0 ? ", " : "");
        write_array(json, &program_counters[id]);
    }
    fprintf(json, "], \"meters\": [");
    write_array(json, &program_hellos);
    fprintf(json, "]}");
    long length = fflush(json) == 0 && ferror(json) == 0 ? ftell(json) : -ENOSPC;
    fclose(json);
    return length;
}
