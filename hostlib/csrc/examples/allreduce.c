// SPDX-License-Identifier: Apache-2.0
// Adds up an array over all ranks of a job, and checks the sum.
//
//   cc allreduce.c -o allreduce $(python -m p4reduce.fastpath)
//   p4reduce exec --job example --rank 0 --world-size 2 -- ./allreduce 1000000 &
//   p4reduce exec --job example --rank 1 --world-size 2 -- ./allreduce 1000000
#include <p4reduce.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int complain(const p4reduce_error *error) {
    fprintf(stderr, "error %d: %s\n", error->status, error->message);
    return 1;
}

int main(int argument_count, char **arguments) {
    const size_t count = argument_count > 1 ? strtoul(arguments[1], NULL, 10) : 1000000;
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = p4reduce_open_from_environment(&error);
    if (engine == NULL)
        return complain(&error);

    // One value in a hundred is not zero; blocks of zeros are not sent.
    float *values = calloc(count + 1, sizeof *values);
    if (values == NULL)
        return 1;
    for (size_t i = 0; i < count; i += 100)
        values[i] = 0.5f;

    const p4reduce_request request = {
        .size = sizeof request,
        .type = P4REDUCE_FLOAT32,
        .data = values,
        .count = count,
        .timeout = 30,
    };
    if (p4reduce_allreduce(engine, &request, &error) != P4REDUCE_OK)
        return complain(&error);

    size_t wrong = 0;
    for (size_t i = 1; i < count; i++)
        wrong += values[i] != (i % 100 == 0 ? values[0] : 0.0f);
    p4reduce_stats stats = {.size = sizeof stats};
    p4reduce_get_stats(engine, &stats);
    char link[128];
    p4reduce_describe(engine, link, sizeof link);
    printf("sum %g, wrong %zu, packets %" PRIu64 ", %.3f s, %s, %s\n", count ? (double)values[0] : 0.0, wrong,
           stats.packets_sent, stats.seconds, link, p4reduce_simd());

    p4reduce_free(engine);
    free(values);
    return wrong != 0;
}
