#include "base/rng.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

void tt_rng_block(uint64_t key, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t tt_rng_key(uint64_t seed, const char *name)
{
    return XXH64(name, strlen(name), seed);
}

/* One block gives two uniform doubles of 53 bits, these two normals: numbers 2b and 2b + 1. */
static void normal_pair(uint64_t key, uint64_t block, double out[2])
{
    uint32_t w[4];
    tt_rng_block(key, 0, block, w);
    uint64_t a = ((uint64_t)w[0] << 21) ^ (w[1] >> 11), b = ((uint64_t)w[2] << 21) ^ (w[3] >> 11);
    double u = ((double)a + 0.5) * 0x1p-53, v = (double)b * 0x1p-53;
    double radius = sqrt(-2 * log(u)), angle = 2 * M_PI * v;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

void tt_rng_normal(uint64_t key, int64_t first, int64_t n, float *out)
{
    double pair[2];
    int64_t have = -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t index = first + i;
        if (index / 2 != have) normal_pair(key, (uint64_t)(have = index / 2), pair);
        out[i] = (float)pair[index % 2];
    }
}
