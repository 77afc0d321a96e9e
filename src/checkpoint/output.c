#include "checkpoint/output.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

tt_status tt_stretches_add(tt_stretches *s, tt_stretch stretch)
{
    if (s->num == s->capacity) {
        int64_t more = s->capacity ? 2 * s->capacity : 64;
        tt_stretch *grown = realloc(s->at, (size_t)more * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory for %lld checksums", (long long)more);
        s->at = grown;
        s->capacity = more;
    }
    s->at[s->num++] = stretch;
    return TT_OK;
}

tt_status tt_output_path(char *out, size_t size, const char *folder, const char *name, const char *suffix)
{
    char full[512];
    int n = snprintf(full, sizeof full, "%s%s", name, suffix);
    TT_CHECK(n > 0 && (size_t)n < sizeof full, TT_ECONFIG, "file name is too long: %.200s", name);
    return tt_path_join(out, size, folder, full);
}

void tt_output_share(tt_output *o, const tt_mesh *mesh)
{
    int64_t carried = o->layout->source ? o->layout->source->carried_bytes : 0;
    o->carried_begin = tt_block_begin(carried, mesh->world_size, mesh->rank);
    o->carried_end = tt_block_begin(carried, mesh->world_size, mesh->rank + 1);
}

int64_t tt_output_bytes(const tt_output *o)
{
    int64_t sum = o->carried_end - o->carried_begin;
    for (int64_t i = 0; i < o->num_ranges; i++)
        sum += o->ranges[i].count * (int64_t)tt_dtype_size(o->layout->items[o->ranges[i].item].dtype);
    return sum;
}

tt_status tt_output_create(tt_output *o)
{
    char path[4096];
    const tt_st_plan *files = &o->layout->files;
    for (int i = 0; i < files->num_files; i++) {
        tt_file f;
        size_t bytes = (size_t)files->header_bytes[i];
        TT_TRY(tt_output_path(path, sizeof path, o->folder, files->file_names[i], o->suffix));
        TT_TRY(tt_file_create(&f, path, files->file_bytes[i]));
        tt_status status = tt_file_write_at(&f, 0, files->headers[i], bytes);
        tt_file_close(&f);
        if (status == TT_OK && o->written)
            status = tt_stretches_add(o->written, (tt_stretch){o->first_file + i, 0, (int64_t)bytes,
                                                               XXH64(files->headers[i], bytes, 0)});
        TT_TRY(status);
    }
    return TT_OK;
}

/* --- bytes out ----------------------------------------------------------------------------------------------- */

/* A file being written, and the stretch of it that is under way. */
typedef struct sink {
    tt_output *o;
    tt_file file; /* .path NULL until it is needed */
    int index;
    int64_t begin, at;
    int64_t sent[2]; /* the disk has begun with what lies before the second, and had done so with the first before */
    XXH64_state_t *hash;
    char *piece; /* TT_OUTPUT_PIECE bytes, when needed */
} sink;

static tt_status open_once(sink *s)
{
    char path[4096];
    if (s->file.path) return TT_OK;
    const char *name = s->o->layout->files.file_names[s->index];
    TT_TRY(tt_output_path(path, sizeof path, s->o->folder, name, s->o->suffix));
    tt_status status = tt_file_open_write(&s->file, path);
    return status == TT_OK ? status
                           : tt_error_context(status, "the first rank has made this file, so all must see that folder");
}

static tt_status need_piece(sink *s)
{
    if (!s->piece) s->piece = malloc((size_t)TT_OUTPUT_PIECE);
    TT_CHECK(s->piece, TT_ENOMEM, "out of memory for writing '%s'", s->file.path);
    return TT_OK;
}

static tt_status begin_stretch(sink *s, int64_t at)
{
    TT_TRY(open_once(s));
    s->begin = s->at = at;
    XXH64_reset(s->hash, 0);
    return TT_OK;
}

static tt_status end_stretch(sink *s)
{
    tt_output *o = s->o;
    if (!o->written || s->at == s->begin) return TT_OK;
    return tt_stretches_add(o->written, (tt_stretch){o->first_file + s->index, s->begin, s->at, XXH64_digest(s->hash)});
}

/* The disk begins with what is new, and ends with what it began with the last time. */
static tt_status send_on(sink *s)
{
    TT_TRY(tt_file_write_back(&s->file, s->sent[1], s->at, false));
    TT_TRY(tt_file_write_back(&s->file, s->sent[0], s->sent[1], true));
    s->sent[0] = s->sent[1], s->sent[1] = s->at;
    return TT_OK;
}

/* One piece; a new stretch begins when the last is long. */
static tt_status put(sink *s, const void *data, int64_t bytes)
{
    if (s->at - s->begin >= TT_OUTPUT_RANGE) {
        TT_TRY(end_stretch(s));
        TT_TRY(begin_stretch(s, s->at));
    }
    TT_TRY(tt_file_write_at(&s->file, s->at, data, (size_t)bytes));
    if (s->o->written) XXH64_update(s->hash, data, (size_t)bytes);
    if (s->o->done) atomic_fetch_add(s->o->done, bytes);
    s->at += bytes;
    s->o->bytes += bytes;
    return s->at - s->sent[1] < TT_OUTPUT_FLUSH ? TT_OK : send_on(s);
}

/* Elements of `data` to where they belong in the file, converted when the types differ. */
static tt_status put_range(sink *s, const tt_st_item *item, const tt_save_range *r)
{
    int64_t to = (int64_t)tt_dtype_size(item->dtype), from = (int64_t)tt_dtype_size(r->type), step = TT_OUTPUT_PIECE / to;
    bool same = r->type == item->dtype;
    TT_TRY(begin_stretch(s, item->begin + r->first * to));
    if (!same) TT_TRY(need_piece(s));
    for (int64_t i = 0; i < r->count; i += step) {
        int64_t n = tt_min_i64(step, r->count - i);
        const char *data = (const char *)r->data + i * from;
        if (!same) tt_convert(s->piece, item->dtype, data, r->type, n);
        TT_TRY(put(s, same ? data : s->piece, n * to));
    }
    return end_stretch(s);
}

/* Bytes [begin, end) of what the source carries go to `at` as they are. */
static tt_status put_carried(sink *s, const tt_file *from, int64_t begin, int64_t end, int64_t at)
{
    TT_TRY(begin_stretch(s, at));
    TT_TRY(need_piece(s));
    while (begin < end) {
        int64_t n = tt_min_i64(TT_OUTPUT_PIECE, end - begin);
        TT_TRY(tt_file_read_at(from, begin, s->piece, (size_t)n));
        TT_TRY(put(s, s->piece, n));
        begin += n;
    }
    return end_stretch(s);
}

static tt_status write_own(sink *s)
{
    for (int64_t j = 0; j < s->o->num_ranges; j++) {
        const tt_save_range *r = &s->o->ranges[j];
        const tt_st_item *item = &s->o->layout->items[r->item];
        if (item->file == s->index && r->count > 0) TT_TRY(put_range(s, item, r));
    }
    return TT_OK;
}

static tt_status write_carried(sink *s)
{
    const tt_layout *l = s->o->layout;
    int64_t at = 0; /* of this item among all that is carried */
    for (int64_t j = 0; l->source && j < l->num; j++) {
        const tt_st_item *item = &l->items[j];
        const tt_st_tensor *t = &l->source->folder.tensors[l->tensor_of[j]];
        if (l->source->role[l->tensor_of[j]] != TT_SOURCE_CARRIED) continue;
        int64_t size = t->end - t->begin, lo = tt_max_i64(s->o->carried_begin, at), hi = tt_min_i64(s->o->carried_end, at + size);
        if (item->file == s->index && lo < hi)
            TT_TRY(put_carried(s, &l->source->folder.files[t->file], t->begin + lo - at, t->begin + hi - at,
                               item->begin + lo - at));
        at += size;
    }
    return TT_OK;
}

static tt_status write_file(sink *s)
{
    TT_TRY(write_own(s));
    TT_TRY(write_carried(s));
    s->sent[0] = s->sent[1] = 0;
    return s->file.path ? tt_file_sync(&s->file) : TT_OK;
}

tt_status tt_output_write(tt_output *o)
{
    sink s = {.o = o, .hash = XXH64_createState()};
    tt_status status = s.hash ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for a checksum");
    for (; s.index < o->layout->files.num_files && status == TT_OK; s.index++) {
        status = write_file(&s);
        tt_file_close(&s.file);
    }
    free(s.piece);
    XXH64_freeState(s.hash);
    return status;
}
