/* tokenizer_added.c - finding added tokens in a text: an Aho-Corasick automaton, leftmost match first, of
 * these the longest. Linear in the text as long as nothing matches; each match costs at most the longest
 * token once more, because only the characters behind it tell that no longer one begins at the same place.
 *
 * The common library goes on scanning inside the white space that a token with rstrip has taken, and may then
 * report a token of spaces there twice. Here what a token has taken belongs to it alone.
 */
#include "data/tokenizer_impl.h"

#include <stdlib.h>

#include <utf8proc.h>

static tt_status add_node(tt_automaton *a, int32_t depth, int32_t *out)
{
    TT_TRY(tt_grow((void **)&a->nodes, &a->capacity, a->count + 1, sizeof *a->nodes));
    TT_CHECK(a->count < INT32_MAX, TT_EFORMAT, "tokenizer: the added tokens are too long together");
    a->nodes[a->count] = (struct tt_node){.depth = depth, .pattern = -1};
    *out = (int32_t)a->count++;
    return TT_OK;
}

static int32_t edge(const tt_automaton *a, int32_t node, unsigned char byte)
{
    const uint64_t *to = tt_map_find(&a->edges, (uint64_t)node << 8 | byte);
    return to ? (int32_t)*to : -1;
}

tt_status tt_automaton_add(tt_automaton *a, const char *pattern, size_t size, int32_t index)
{
    if (size == 0) return TT_OK;
    int32_t node = 0;
    if (a->count == 0) TT_TRY(add_node(a, 0, &node));
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)pattern[i];
        int32_t to = edge(a, node, byte);
        if (to < 0) {
            TT_TRY(add_node(a, (int32_t)i + 1, &to));
            TT_TRY(tt_map_put(&a->edges, (uint64_t)node << 8 | byte, (uint64_t)to));
        }
        node = to;
    }
    a->first[(unsigned char)pattern[0]] = true;
    if (a->nodes[node].pattern >= 0) return TT_OK; /* of two equal patterns the first counts */
    a->nodes[node].pattern = index;
    a->nodes[node].size = (int32_t)size;
    return TT_OK;
}

/* Suffix links need every shorter node done first. A trie built word by word is not in that order, so edges
 * are sorted by depth (counting sort); edges of one depth come in any order. */
tt_status tt_automaton_seal(tt_automaton *a)
{
    if (a->count == 0) return TT_OK;
    size_t *start = calloc(a->count + 1, sizeof *start);
    struct tt_map_entry *order = malloc((a->edges.count + 1) * sizeof *order);
    if (!start || !order) {
        free(start);
        free(order);
        return tt_error_set(TT_ENOMEM, "tokenizer: no memory for the added tokens");
    }
    for (size_t i = 0; i < a->count; i++) start[a->nodes[i].depth]++;
    for (size_t d = 0, sum = 0; d <= a->count; d++) { /* depth 0 is the root, which no edge leads to */
        size_t n = d ? start[d] : 0;
        start[d] = sum;
        sum += n;
    }
    for (size_t i = 0; a->edges.entries && i <= a->edges.mask; i++)
        if (a->edges.entries[i].key != UINT64_MAX)
            order[start[a->nodes[a->edges.entries[i].value].depth]++] = a->edges.entries[i];
    for (size_t i = 0; i < a->edges.count; i++) {
        int32_t parent = (int32_t)(order[i].key >> 8), node = (int32_t)order[i].value, fail = -1;
        for (int32_t f = parent; f != 0 && fail < 0;)
            fail = edge(a, f = a->nodes[f].fail, (unsigned char)order[i].key);
        struct tt_node *n = &a->nodes[node];
        n->fail = fail < 0 ? 0 : fail;
        if (n->pattern < 0) n->pattern = a->nodes[n->fail].pattern, n->size = a->nodes[n->fail].size;
    }
    free(start);
    free(order);
    return TT_OK;
}

static int32_t step(const tt_automaton *a, int32_t node, unsigned char byte)
{
    for (;;) {
        int32_t to = edge(a, node, byte);
        if (to >= 0) return to;
        if (node == 0) return 0;
        node = a->nodes[node].fail;
    }
}

bool tt_automaton_find(const tt_automaton *a, const char *text, size_t size, size_t from, int32_t *pattern,
                       size_t *begin, size_t *end)
{
    if (a->count == 0) return false;
    bool found = false;
    int32_t node = 0;
    for (size_t i = from; i < size; i++) {
        if (node == 0 && !a->first[(unsigned char)text[i]]) {
            if (found) return true;
            continue;
        }
        node = step(a, node, (unsigned char)text[i]);
        const struct tt_node *n = &a->nodes[node];
        /* What the node holds begins behind the match: nothing earlier or longer can come any more. */
        if (found && i + 1 - (size_t)n->depth > *begin) return true;
        size_t start = i + 1 - (size_t)n->size;
        if (n->pattern >= 0 && (!found || start <= *begin)) {
            found = true;
            *pattern = n->pattern;
            *begin = start;
            *end = i + 1;
        }
    }
    return found;
}

void tt_automaton_fini(tt_automaton *a)
{
    tt_map_fini(&a->edges);
    free(a->nodes);
    *a = (tt_automaton){0};
}

/* --- what surrounds a match ------------------------------------------------------------------- */

/* Letter, mark, decimal digit, connector punctuation, join control; letters in the wide sense of the property
 * Alphabetic, which takes in letter numbers and the enclosed letters. */
static bool is_word(uint32_t c)
{
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

static bool stands_alone(const char *text, size_t size, size_t begin, size_t end)
{
    uint32_t c;
    if (begin > 0 && (tt_u8_next(text + tt_u8_back(text, begin), &c), is_word(c))) return false;
    return end == size || (tt_u8_next(text + end, &c), !is_word(c));
}

const tt_added *tt_added_next(const tt_automaton *a, const tt_added *tokens, const char *text, size_t size,
                              tt_added_walk *walk, size_t *begin, size_t *end)
{
    int32_t index;
    uint32_t c;
    while (tt_automaton_find(a, text, size, walk->scan, &index, begin, end)) {
        const tt_added *token = &tokens[index];
        walk->scan = *end;
        if (token->single_word && !stands_alone(text, size, *begin, *end)) continue;
        if (token->lstrip)
            for (size_t b = *begin; b > walk->done; *begin = b) {
                tt_u8_next(text + (b = tt_u8_back(text, b)), &c);
                if (!tt_is_space(c)) break;
            }
        if (token->rstrip)
            while (*end < size) {
                size_t n = tt_u8_next(text + *end, &c);
                if (!tt_is_space(c)) break;
                *end += n;
            }
        walk->done = walk->scan = *end;
        return token;
    }
    return NULL;
}
