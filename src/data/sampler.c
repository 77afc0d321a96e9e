/* sampler.c - the generators: see sampler.h.
 *   MT19937               Matsumoto and Nishimura, "Mersenne Twister", 1998
 *   PCG64 XSL-RR 128/64   O'Neill, "PCG: a family of simple fast space-efficient statistically good algorithms",
 *                         2014; behind numpy's seed sequence */
#include "data/sampler.h"

#include <stdbool.h>
#include <stdint.h>

static void swap(int64_t *order, int64_t i, int64_t j)
{
    int64_t t = order[i];
    order[i] = order[j];
    order[j] = t;
}

void tt_order_sequential(int64_t n, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
}

/* --- MT19937 -------------------------------------------------------------------------------------------- */

enum { MT_WORDS = 624, MT_SHIFT = 397 };

typedef struct twister {
    uint32_t word[MT_WORDS];
    int next;
} twister;

static void twister_seed(twister *t, uint32_t seed)
{
    t->word[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++)
        t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
    t->next = MT_WORDS;
}

static void twister_refill(twister *t)
{
    for (int i = 0; i < MT_WORDS; i++) {
        uint32_t y = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % MT_WORDS] & 0x7fffffffu);
        t->word[i] = t->word[(i + MT_SHIFT) % MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

static uint32_t twister_draw(twister *t)
{
    if (t->next == MT_WORDS) twister_refill(t);
    uint32_t y = t->word[t->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

tt_status tt_order_random(uint64_t seed, int64_t epoch, int64_t n, int64_t *order)
{
    TT_CHECK(n <= UINT32_MAX, TT_EDATA,
             "%lld rows are more than can be permuted (2^32 - 1); set "
             "train_sampling_strategy: sequential",
             (long long)n);
    twister t;
    twister_seed(&t, (uint32_t)(seed + (uint64_t)epoch));
    tt_order_sequential(n, order);
    for (int64_t i = 0; i < n - 1; i++) swap(order, i, i + twister_draw(&t) % (n - i));
    return TT_OK;
}

/* --- PCG64 ---------------------------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 u128;

typedef struct pcg {
    u128 state, increment;
    uint32_t half; /* the upper half of the last draw, when a 32-bit draw has taken the lower */
    bool has_half;
} pcg;

static uint32_t scramble(uint32_t v, uint32_t *hash)
{
    v ^= *hash;
    *hash *= 0x931e8875u;
    v *= *hash;
    return v ^ v >> 16;
}

static uint32_t blend(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

/* Four 64-bit words from the seed: numpy's seed sequence with a pool of four words. */
static void expand_seed(uint64_t seed, uint64_t out[4])
{
    uint32_t pool[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, word[8], hash = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) pool[i] = scramble(pool[i], &hash);
    for (int s = 0; s < 4; s++)
        for (int d = 0; d < 4; d++)
            if (s != d) pool[d] = blend(pool[d], scramble(pool[s], &hash));
    uint32_t k = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i % 4] ^ k;
        k *= 0x58f38dedu;
        v *= k;
        word[i] = v ^ v >> 16;
    }
    for (int i = 0; i < 4; i++) out[i] = word[2 * i] | (uint64_t)word[2 * i + 1] << 32;
}

static void pcg_step(pcg *g)
{
    const u128 multiplier = (u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    g->state = g->state * multiplier + g->increment;
}

static void pcg_seed(pcg *g, uint64_t seed)
{
    uint64_t a[4];
    expand_seed(seed, a);
    *g = (pcg){.increment = ((u128)a[2] << 64 | a[3]) << 1 | 1};
    pcg_step(g);
    g->state += (u128)a[0] << 64 | a[1];
    pcg_step(g);
}

static uint64_t pcg_draw64(pcg *g)
{
    pcg_step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned by = (unsigned)(g->state >> 122);
    return x >> by | x << (-by & 63);
}

static uint32_t pcg_draw32(pcg *g)
{
    if (g->has_half) {
        g->has_half = false;
        return g->half;
    }
    uint64_t x = pcg_draw64(g);
    g->half = (uint32_t)(x >> 32);
    g->has_half = true;
    return (uint32_t)x;
}

/* A number from 0 to top: draws under the smallest mask, those above thrown away. */
static uint64_t pcg_upto(pcg *g, uint64_t top)
{
    uint64_t mask = top, j;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    do j = (top <= UINT32_MAX ? pcg_draw32(g) : pcg_draw64(g)) & mask;
    while (j > top);
    return j;
}

void tt_order_shuffle(uint64_t seed, int64_t n, int64_t *order)
{
    pcg g;
    pcg_seed(&g, seed);
    tt_order_sequential(n, order);
    for (int64_t i = n - 1; i > 0; i--) swap(order, i, (int64_t)pcg_upto(&g, (uint64_t)i));
}
