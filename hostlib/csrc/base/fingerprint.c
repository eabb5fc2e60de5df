// SPDX-License-Identifier: Apache-2.0
#include "base/fingerprint.h"

#include "wire/bytes.h"

#include <stdio.h>

static uint32_t crc32(const uint8_t *bytes, size_t length) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

uint32_t fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count) {
    uint8_t bytes[12 + NUMBERS_BYTES + NAME_BYTES];
    store_32(bytes, counter);
    store_32(bytes + 4, (uint32_t)(count >> 32));
    store_32(bytes + 8, (uint32_t)count);
    int length = snprintf((char *)bytes + 12, sizeof bytes - 12, "%s/%s", dtype, reduce_op);
    return crc32(bytes, 12 + (size_t)length) & ~UINT32_C(0xFF);
}
