#include "support/trial.h"
#include "support/test.h"

#include "base/checked.h"
#include "base/rng.h"
#include "tensor/dtype.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- models -------------------------------------------------------------------------------------------------- */

static float wave(const tt_param *p, int64_t i)
{
    return (float)sin((double)(tt_rng_key(1, p->name) % 1000) + 1.3 * (double)i);
}

static bool is_router(const tt_param *p)
{
    return strstr(p->name, "mlp.gate.weight") != NULL;
}

float trial_plain(const tt_param *p, int64_t element, float value)
{
    (void)p, (void)element;
    return value;
}

float trial_liven(const tt_param *p, int64_t element, float value)
{
    if (p->ndim == 2) return value;
    if (strstr(p->name, "correction_bias")) return 0.3f * wave(p, element);
    return value + (strstr(p->name, "bias") ? 0.1f : 0.2f) * wave(p, element);
}

float trial_all_tie(const tt_param *p, int64_t element, float value)
{
    return is_router(p) ? 0 : trial_liven(p, element, value);
}

/* Element 0 of each token's residual stream is large and positive, and the last expert asks for it. */
float trial_all_last(const tt_param *p, int64_t element, float value)
{
    bool first_column = p->ndim == 2 && element % p->shape[1] == 0;
    if (first_column && strstr(p->name, "embed_tokens")) return 4;
    if (first_column && is_router(p) && element / p->shape[1] == p->shape[0] - 1) return 1.5f;
    return trial_liven(p, element, value);
}

float trial_triples(const tt_param *p, int64_t element, float value)
{
    if (!is_router(p)) return trial_liven(p, element, value);
    int64_t row = element / p->shape[1] % 3, column = element % p->shape[1];
    return 0.3f * wave(p, row * p->shape[1] + column);
}

#define COMMON      "\"initializer_range\": 0.2, \"rope_theta\": 10000.0, "
#define OLMOE(rest) "{\"model_type\": \"olmoe\", " COMMON rest "}"
#define QWEN3(rest) "{\"model_type\": \"qwen3_moe\", " COMMON rest "}"
#define GLM4(rest)  "{\"model_type\": \"glm4_moe\", " COMMON rest "}"

const trial_model trial_models[] = {
    {.name = "olmoe",
     .config =
         OLMOE("\"vocab_size\": 40, \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
               "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 12, \"pad_token_id\": 1")},
    {.name = "olmoe, 10 experts, tied, clamped",
     .config = OLMOE(
         "\"vocab_size\": 37, \"hidden_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 3,"
         "\"num_key_value_heads\": 1, \"num_experts\": 10, \"num_experts_per_tok\": 3, \"intermediate_size\": 7,"
         "\"norm_topk_prob\": true, \"clip_qkv\": 0.8, \"attention_bias\": true, \"tie_word_embeddings\": true,"
         "\"pad_token_id\": 1")},
    {.name = "olmoe, all 6 experts chosen",
     .config = OLMOE("\"vocab_size\": 33, \"hidden_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
                     "\"num_experts\": 6, \"num_experts_per_tok\": 6, \"intermediate_size\": 5")},
    {.name = "olmoe, one expert chosen",
     .config = OLMOE("\"vocab_size\": 33, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
                     "\"num_experts\": 8, \"num_experts_per_tok\": 1, \"intermediate_size\": 9")},
    {.name = "olmoe, all tokens to the last expert",
     .edit = trial_all_last,
     .config = OLMOE("\"vocab_size\": 40, \"hidden_size\": 32, \"num_hidden_layers\": 1, \"num_attention_heads\": 4,"
                     "\"num_experts\": 9, \"num_experts_per_tok\": 2, \"intermediate_size\": 6")},
    {.name = "qwen3, a dense layer between",
     .config = QWEN3("\"vocab_size\": 41, \"hidden_size\": 24, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
                     "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 9, \"num_experts_per_tok\": 2,"
                     "\"norm_topk_prob\": true, \"moe_intermediate_size\": 6, \"intermediate_size\": 20, "
                     "\"mlp_only_layers\": [1]")},
    {.name = "qwen3, smaller than the world, tied",
     .config = QWEN3("\"vocab_size\": 3, \"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1,"
                     "\"num_key_value_heads\": 1, \"head_dim\": 4, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
                     "\"moe_intermediate_size\": 2, \"tie_word_embeddings\": true")},
    {.name = "qwen3, window, biases",
     .config = QWEN3("\"vocab_size\": 35, \"hidden_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
                     "\"num_key_value_heads\": 2, \"head_dim\": 6, \"num_experts\": 8, \"num_experts_per_tok\": 3,"
                     "\"moe_intermediate_size\": 5, \"intermediate_size\": 18, \"decoder_sparse_step\": 2,"
                     "\"attention_bias\": true, \"use_sliding_window\": true, \"sliding_window\": 4")},
    {.name = "qwen3, one expert",
     .config = QWEN3("\"vocab_size\": 35, \"hidden_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
                     "\"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 1, \"num_experts_per_tok\": 1,"
                     "\"moe_intermediate_size\": 8")},
    {.name = "qwen3, dense",
     .config = QWEN3("\"vocab_size\": 35, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
                     "\"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 0, \"intermediate_size\": 20")},
    {.name = "qwen3, all scores tie",
     .edit = trial_all_tie,
     .ties = true,
     .config = QWEN3("\"vocab_size\": 35, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
                     "\"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 10, \"num_experts_per_tok\": 2,"
                     "\"moe_intermediate_size\": 6, \"norm_topk_prob\": true")},
    {.name = "olmoe, triples tie",
     .edit = trial_triples,
     .ties = true,
     .config = OLMOE("\"vocab_size\": 40, \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                     "\"num_experts\": 9, \"num_experts_per_tok\": 4, \"intermediate_size\": 6")},
    {.name = "glm4, groups, shared, tied",
     .config =
         GLM4("\"vocab_size\": 39, \"hidden_size\": 24, \"num_hidden_layers\": 3, \"num_attention_heads\": 3,"
              "\"num_key_value_heads\": 1, \"head_dim\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 3,"
              "\"n_shared_experts\": 2, \"moe_intermediate_size\": 6, \"intermediate_size\": 20, \"n_group\": 4,"
              "\"topk_group\": 2, \"routed_scaling_factor\": 2.5, \"use_qk_norm\": true, \"attention_bias\": true,"
              "\"tie_word_embeddings\": true, \"pad_token_id\": 3")},
    {.name = "glm4, 10 experts",
     .config =
         GLM4("\"vocab_size\": 38, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
              "\"num_key_value_heads\": 2, \"head_dim\": 8, \"n_routed_experts\": 10, \"num_experts_per_tok\": 2,"
              "\"n_shared_experts\": 1, \"moe_intermediate_size\": 7, \"intermediate_size\": 20, \"norm_topk_prob\": "
              "false,"
              "\"attention_bias\": true")},
};
const int trial_num_models = sizeof trial_models / sizeof *trial_models;

const trial_model *trial_find_model(const char *name)
{
    for (int i = 0; i < trial_num_models; i++)
        if (!strcmp(trial_models[i].name, name)) return &trial_models[i];
    fail_msg("no model '%s'", name);
    return NULL;
}

tt_status trial_shape_open(const trial_model *model, trial_shape *s)
{
    json_error_t error;
    json_t *object = json_loads(model->config, 0, &error);
    *s = (trial_shape){.model = model};
    TT_CHECK(object, TT_EFORMAT, "%s: %s", model->name, error.text);
    tt_status status = tt_model_config_read(object, model->name, &s->config);
    json_decref(object);
    TT_TRY(status);
    TT_TRY(tt_model_table_build(&s->config, &s->table));
    const tt_params *params = &s->table.params;
    s->begin = malloc((size_t)(params->num + 1) * sizeof *s->begin);
    TT_CHECK(s->begin, TT_ENOMEM, "out of memory");
    for (int64_t i = 0; i < params->num; i++) {
        s->begin[i] = s->total;
        s->total += params->at[i].count;
    }
    s->begin[params->num] = s->total;
    return TT_OK;
}

void trial_shape_close(trial_shape *s)
{
    tt_model_table_free(&s->table);
    tt_model_config_free(&s->config);
    free(s->begin);
    *s = (trial_shape){0};
}

/* --- meshes -------------------------------------------------------------------------------------------------- */

const trial_mesh trial_meshes[] = {
    TRIAL_MESH(1, 1), TRIAL_MESH(2, 1), TRIAL_MESH(2, 2), TRIAL_MESH(3, 1), TRIAL_MESH(3, 3), TRIAL_MESH(4, 1),
    TRIAL_MESH(4, 2), TRIAL_MESH(4, 4), TRIAL_MESH(5, 1), TRIAL_MESH(5, 5), TRIAL_MESH(6, 1), TRIAL_MESH(6, 2),
    TRIAL_MESH(6, 3), TRIAL_MESH(6, 6), TRIAL_MESH(8, 1), TRIAL_MESH(8, 2), TRIAL_MESH(8, 4), TRIAL_MESH(8, 8)};
const int trial_num_meshes = sizeof trial_meshes / sizeof *trial_meshes;

bool trial_mesh_fits(const trial_shape *s, trial_mesh mesh)
{
    tt_mesh_sizes sizes = {.ep_size = mesh.ep, .tp_size = mesh.tp, .dispatch = mesh.dispatch};
    return tt_engine_check_mesh(&sizes, mesh.world, &s->config) == TT_OK;
}

int trial_variants(trial_mesh mesh, int64_t num_experts, trial_mesh *out)
{
    int num = 0;
    for (int tp = 1; tp <= mesh.world; tp++)
        for (tt_dispatch_kind d = TT_DISPATCH_ALLTOALL; d <= TT_DISPATCH_ALLREDUCE; d++) {
            tt_mesh_sizes sizes = {.ep_size = mesh.ep, .tp_size = tp, .dispatch = d};
            if (tt_mesh_resolve(&sizes, mesh.world, num_experts) != TT_OK) continue;
            TT_ASSERT(num < TRIAL_MAX_VARIANTS);
            out[num++] = (trial_mesh){mesh.world, mesh.ep, tp, d};
        }
    return num;
}

trial_mesh trial_turn(const trial_shape *s, trial_mesh mesh, int turn)
{
    trial_mesh variants[TRIAL_MAX_VARIANTS];
    int num = trial_variants(mesh, s->config.num_experts, variants);
    return num ? variants[turn % num] : mesh;
}

const char *trial_mesh_name(trial_mesh mesh)
{
    static _Thread_local char name[80];
    static const char *const dispatch[] = {"alltoall", "allgather", "allreduce"};
    snprintf(name, sizeof name, "world %d, tp %d, ep %d, %s", mesh.world, mesh.tp, mesh.ep, dispatch[mesh.dispatch]);
    return name;
}

typedef struct job {
    const trial_run *run;
    tt_status (*body)(tt_engine *, void *);
    void *arg;
} job;

static void edit(tt_engine *e, trial_edit change)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        const tt_param *p = &e->table.params.at[pieces[i].param];
        tt_mat m = tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT);
        for (int64_t j = 0; j < pieces[i].count; j++) {
            float value;
            char *at = (char *)m.data + (size_t)j * tt_dtype_size(m.dtype);
            tt_convert(&value, TT_F32, at, m.dtype, 1);
            value = change(p, pieces[i].first + j, value);
            tt_convert(at, m.dtype, &value, TT_F32, 1);
        }
    }
}

static tt_status open_engine(tt_comm *comm, const trial_run *r, tt_engine *e)
{
    json_t *config = r->folder ? NULL : json_loads(r->model->config, 0, NULL);
    tt_engine_options o = {
        .folder = r->folder,
        .config = config,
        .init_seed = 3,
        .mesh = {.ep_size = r->mesh.ep, .tp_size = r->mesh.tp, .dispatch = r->mesh.dispatch},
        .ops = r->ops ? r->ops : &tt_ops_ref,
        .resident = r->bf16_weights ? TT_BF16 : TT_F32,
        .compute = r->bf16_compute ? TT_BF16 : TT_F32,
        .moments = r->bf16_moments ? TT_BF16 : TT_F32,
        .threads = r->threads ? r->threads : 1,
        .train = true,
        .with_moments = true,
    };
    tt_status status = tt_engine_open(comm, &o, e);
    json_decref(config);
    TT_TRY(status);
    if (!r->folder) edit(e, r->model->edit ? r->model->edit : trial_liven);
    e->model.recompute = !r->keep_all;
    e->model.booked_pairs = r->booked;
    if (r->loss_chunk) e->model.loss_chunk = r->loss_chunk;
    return TT_OK;
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    const job *j = arg;
    tt_engine e = {0};
    tt_comm_set_timeout(comm, 60);
    tt_status status = open_engine(comm, j->run, &e);
    if (status == TT_OK) status = j->body(&e, j->arg);
    tt_engine_close(&e);
    return status;
}

tt_status trial_on_mesh(const trial_run *run, tt_status (*body)(tt_engine *e, void *arg), void *arg)
{
    job j = {run, body, arg};
    bool given = getenv("TARTAN_SHARED") != NULL;
    size_t turn = (size_t)(run->mesh.world + run->mesh.ep + run->mesh.tp + (int)run->mesh.dispatch) + strlen(run->model->name);
    if (!given) setenv("TARTAN_SHARED", turn % 2 == run->otherwise ? "0" : "1", 1);
    /* Each world allocates megabytes of which it touches little. glibc would soon take them from its heap and clear them,
     * which is most of the time that a world of tiny models lives. */
    mallopt(M_MMAP_THRESHOLD, 1 << 18);
    tt_status status = tt_comm_run_threads(run->mesh.world, rank_main, &j);
    if (!given) unsetenv("TARTAN_SHARED");
    return status;
}

/* --- tests of every model on every mesh -------------------------------------------------------------------------- */

static trial_entry entries[TRIAL_MAX_TESTS];

/* None when an ep group would have more ranks than there are experts. */
static size_t add_variants(int model, int mesh, CMUnitTestFunction test, int thin, struct CMUnitTest *tests, size_t num)
{
    trial_mesh variants[TRIAL_MAX_VARIANTS];
    trial_shape s;
    int count = 0;
    if (trial_shape_open(&trial_models[model], &s) == TT_OK) count = trial_variants(trial_meshes[mesh], s.config.num_experts, variants);
    trial_shape_close(&s);
    for (int i = 0; i < count; i++) {
        char name[200];
        if (!test_full() && i != (model / thin + mesh) % count) continue;
        TT_ASSERT(num < TRIAL_MAX_TESTS);
        snprintf(name, sizeof name, "%s, %s", trial_models[model].name, trial_mesh_name(variants[i]));
        entries[num] = (trial_entry){model, model + mesh / thin + i, variants[i]};
        tests[num] = (struct CMUnitTest){strdup(name), test, NULL, NULL, &entries[num]};
        num++;
    }
    return num;
}

size_t trial_tests(CMUnitTestFunction test, int thin, struct CMUnitTest *tests)
{
    size_t num = 0;
    for (int m = 0; m < trial_num_models; m++)
        for (int i = 0; i < trial_num_meshes; i++)
            if (test_full() || (m + i) % thin == 0) num = add_variants(m, i, test, thin, tests, num);
    return num;
}

/* --- batches ------------------------------------------------------------------------------------------------- */

void trial_spread(int row, trial_mesh mesh, int *rank, int *micro)
{
    (void)mesh;
    *rank = row, *micro = 0;
}
static void to_first(int row, trial_mesh mesh, int *rank, int *micro)
{
    (void)row, (void)mesh;
    *rank = 0, *micro = 0;
}
static void to_last(int row, trial_mesh mesh, int *rank, int *micro)
{
    (void)row;
    *rank = mesh.world - 1, *micro = 0;
}
/* All other groups have no token. */
static void to_first_group(int row, trial_mesh mesh, int *rank, int *micro)
{
    *rank = mesh.ep > mesh.tp ? row % (mesh.ep / mesh.tp) : 0, *micro = 0;
}
/* Micro-step 2 has no row anywhere. */
static void reversed(int row, trial_mesh mesh, int *rank, int *micro)
{
    *rank = 15 * mesh.world - row;
    *micro = (const int[]){3, 0, 1}[row % 3];
}
static void row_by_row(int row, trial_mesh mesh, int *rank, int *micro)
{
    (void)mesh;
    *rank = 5 * row + 1, *micro = row;
}

#define KINDS(...)                                                                                                   \
    .kinds = (const trial_row_kind[]){__VA_ARGS__},                                                                  \
    .num_rows = sizeof((const trial_row_kind[]){__VA_ARGS__}) / sizeof(trial_row_kind)

const trial_plan trial_plans[] = {
    {"every kind of row",
     KINDS(TRIAL_PLAIN, TRIAL_LEFT_PAD, TRIAL_HOLES, TRIAL_SOME, TRIAL_NO_LABEL, TRIAL_ONE, TRIAL_TWO, TRIAL_PACKED,
           TRIAL_MASKED, TRIAL_REPEAT, TRIAL_PLAIN),
     .num_micros = 1, .place = trial_spread},
    {"rows on the first rank alone", KINDS(TRIAL_HOLES, TRIAL_PLAIN), .num_micros = 1, .place = to_first},
    {"rows on the last rank alone", KINDS(TRIAL_SOME, TRIAL_LEFT_PAD), .num_micros = 1, .place = to_last},
    {"a rank without targets", KINDS(TRIAL_NO_LABEL, TRIAL_PLAIN, TRIAL_SOME), .num_micros = 1,
     .place = trial_spread},
    {"rows of one token", KINDS(TRIAL_ONE, TRIAL_ONE, TRIAL_TWO, TRIAL_ONE, TRIAL_ONE), .num_micros = 1,
     .place = trial_spread},
    {"groups without a token", KINDS(TRIAL_PLAIN, TRIAL_HOLES, TRIAL_PACKED, TRIAL_PLAIN, TRIAL_TWO), .num_micros = 1,
     .place = to_first_group},
    {"one token over and over", KINDS(TRIAL_REPEAT, TRIAL_REPEAT, TRIAL_REPEAT), .num_micros = 1,
     .place = trial_spread},
    {"reversed, in micro-steps of which one is empty",
     KINDS(TRIAL_PLAIN, TRIAL_NO_LABEL, TRIAL_HOLES, TRIAL_PACKED, TRIAL_ONE, TRIAL_SOME, TRIAL_REPEAT,
           TRIAL_LEFT_PAD),
     .num_micros = 4, .place = reversed},
    {"row by row", KINDS(TRIAL_PACKED, TRIAL_PLAIN, TRIAL_ONE, TRIAL_HOLES), .num_micros = 4, .place = row_by_row},
    {"no target at all", KINDS(TRIAL_NO_LABEL, TRIAL_ONE, TRIAL_MASKED, TRIAL_NO_LABEL), .num_micros = 1,
     .place = trial_spread},
    {"no token at all", KINDS(TRIAL_MASKED), .num_micros = 1, .place = trial_spread},
};
const int trial_num_plans = sizeof trial_plans / sizeof *trial_plans;

const trial_plan *trial_find_plan(const char *name)
{
    for (int i = 0; i < trial_num_plans; i++)
        if (!strcmp(trial_plans[i].name, name)) return &trial_plans[i];
    fail_msg("no plan '%s'", name);
    return NULL;
}

static const int lengths[] = {7, 9, 11, 13, 6, 1, 2, 12, 4, 8};

static void make_row(trial_row_kind kind, int64_t V, uint64_t key, int32_t (*numbers)[TRIAL_MAX_LENGTH],
                     tt_batch_row *row)
{
    int n = lengths[kind];
    int32_t *ids = numbers[0], *mask = numbers[1], *labels = numbers[2], *positions = numbers[3];
    for (int c = 0; c < n; c++) {
        uint32_t word[4];
        tt_rng_block(key, 0, kind == TRIAL_REPEAT ? 0 : (uint64_t)c, word);
        ids[c] = (int32_t)(word[0] % (uint64_t)V);
        mask[c] = kind == TRIAL_LEFT_PAD ? c >= 3
                  : kind == TRIAL_HOLES  ? "10110011101"[c] == '1'
                                         : kind != TRIAL_MASKED;
        bool start = c == 0 || (kind == TRIAL_PACKED && (c == 3 || c == 7));
        bool none = kind == TRIAL_NO_LABEL || (kind == TRIAL_SOME && c % 4 != 2) || !mask[c] || start;
        labels[c] = none ? TT_NO_TARGET : ids[c];
        positions[c] = start ? 0 : positions[c - 1] + 1;
    }
    *row = (tt_batch_row){.length = n, .ids = ids, .mask = mask};
    if (kind == TRIAL_PACKED) row->positions = positions;
    /* Rows of whole documents leave labels to the default. */
    if (kind != TRIAL_PLAIN && kind != TRIAL_TWO) row->labels = labels;
}

void trial_batch_make(const trial_plan *plan, int64_t vocab_size, uint64_t seed, trial_batch *b)
{
    *b = (trial_batch){.plan = plan, .num_rows = plan->num_rows, .num_micros = plan->num_micros};
    for (int r = 0; r < plan->num_rows; r++) {
        char name[32];
        snprintf(name, sizeof name, "row %d", r);
        make_row(plan->kinds[r], vocab_size, tt_rng_key(seed, name), b->numbers[r], &b->rows[r]);
    }
}

tt_status trial_micros(const tt_engine *e, const trial_batch *b, bool joint, tt_batch *micros, int *num)
{
    const tt_mesh *m = e->mesh;
    trial_mesh mesh = {m->world_size, m->ep_size, m->tp_size, m->dispatch};
    *num = joint ? 1 : b->num_micros;
    memset(micros, 0, (size_t)*num * sizeof *micros);
    for (int r = 0; r < b->num_rows; r++) {
        int rank, micro;
        b->plan->place(r, mesh, &rank, &micro);
        if (rank % m->fsdp_size != m->fsdp_rank) continue;
        TT_TRY(tt_batch_add(&micros[joint ? 0 : micro], &b->rows[r], r, e->config.vocab_size));
    }
    return TT_OK;
}

/* --- choices ------------------------------------------------------------------------------------------------- */

tt_status trial_choices_open(const trial_shape *s, trial_choices *c)
{
    *c = (trial_choices){.K = (int)s->config.experts_per_token,
                         .layers = tt_model_moe_index(&s->config, (int)s->config.num_layers)};
    size_t n = (size_t)(c->layers * TRIAL_MAX_ROWS * TRIAL_MAX_LENGTH * c->K + 1);
    c->at = malloc(n * sizeof *c->at);
    TT_CHECK(c->at, TT_ENOMEM, "out of memory");
    memset(c->at, 0xFF, n * sizeof *c->at);
    return TT_OK;
}

int32_t *trial_choice(const trial_choices *c, int layer, int row, int column)
{
    return c->at + ((int64_t)(layer * TRIAL_MAX_ROWS + row) * TRIAL_MAX_LENGTH + column) * c->K;
}

static void copy_choices(const trial_choices *c, const tt_batch *b, int32_t **lists, bool out)
{
    for (int layer = 0; layer < c->layers; layer++)
        for (int64_t t = 0; t < b->T; t++) {
            int32_t *there = trial_choice(c, layer, b->rows[t], b->columns[t]), *here = lists[layer] + t * c->K;
            memcpy(out ? there : here, out ? here : there, (size_t)c->K * sizeof *here);
        }
}

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

void trial_compare_choices(const char *what, const trial_choices *got, const trial_choices *expected)
{
    int32_t a[64], b[64];
    for (int layer = 0; layer < expected->layers; layer++)
        for (int row = 0; row < TRIAL_MAX_ROWS; row++)
            for (int c = 0; c < TRIAL_MAX_LENGTH; c++) {
                size_t bytes = (size_t)expected->K * sizeof *a;
                memcpy(a, trial_choice(got, layer, row, c), bytes);
                memcpy(b, trial_choice(expected, layer, row, c), bytes);
                qsort(a, (size_t)expected->K, sizeof *a, by_value);
                qsort(b, (size_t)expected->K, sizeof *b, by_value);
                if (memcmp(a, b, bytes) != 0)
                    fail_msg("%s: MoE layer %d, row %d, column %d chose other experts", what, layer, row, c);
            }
}

/* --- one step ------------------------------------------------------------------------------------------------ */

tt_status trial_result_open(const trial_shape *s, trial_result *r)
{
    *r = (trial_result){0};
    r->gradients = malloc((size_t)(s->total + 1) * sizeof *r->gradients);
    TT_CHECK(r->gradients, TT_ENOMEM, "out of memory");
    memset(r->gradients, 0xFF, (size_t)s->total * sizeof *r->gradients); /* NaN, so that what nobody owns is seen */
    return trial_choices_open(s, &r->choices);
}

void trial_result_close(trial_result *r)
{
    free(r->gradients);
    free(r->choices.at);
    *r = (trial_result){0};
}

void trial_collect(const tt_engine *e, const trial_shape *s, tt_shard_part part, float *out)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        if (part != TT_PART_WEIGHT && !s->table.params.at[pieces[i].param].trained) continue;
        tt_mat m = tt_shards_view(e->shards, &pieces[i], part);
        tt_convert(out + s->begin[pieces[i].param] + pieces[i].first, TT_F32, m.data, m.dtype, pieces[i].count);
    }
}

void trial_restart(tt_engine *e, const trial_shape *s, const float *weights)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        tt_mat m = tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT);
        tt_convert(m.data, m.dtype, weights + s->begin[pieces[i].param] + pieces[i].first, TT_F32, pieces[i].count);
        if (!s->table.params.at[pieces[i].param].trained) continue;
        e->kernel->ops->zero(e->kernel, tt_shards_view(e->shards, &pieces[i], TT_PART_MOMENT1));
        e->kernel->ops->zero(e->kernel, tt_shards_view(e->shards, &pieces[i], TT_PART_MOMENT2));
    }
}

static tt_status one_micro(tt_engine *e, const tt_batch *b, double scale, double balance, const trial_choices *replay,
                           trial_result *out, double *sums)
{
    const trial_choices *c = &out->choices;
    int32_t *lists[16], *block = calloc((size_t)(c->layers * b->T * c->K + 1), sizeof *block);
    for (int i = 0; i < c->layers; i++) lists[i] = block + (int64_t)i * b->T * c->K;
    if (replay) copy_choices(replay, b, lists, false);
    tt_micro micro = {
        .batch = b,
        .backward = true,
        .scale = scale,
        .balance = balance,
        .record = replay ? NULL : lists,
        .replay = replay ? (const int32_t *const *)lists : NULL,
    };
    tt_micro_result r;
    tt_status status = tt_model_micro_step(&e->model, &micro, &r);
    if (status == TT_OK && e->mesh->tp_rank == 0) { /* of replicas one speaks */
        copy_choices(c, b, lists, true);
        sums[0] += r.sums.nll;
    }
    sums[1] += r.balance_loss;
    free(block);
    return status;
}

tt_status trial_gradients(tt_engine *e, const trial_shape *s, const trial_batch *b, bool joint, double balance,
                          const trial_choices *replay, trial_result *out)
{
    tt_batch micros[TRIAL_MAX_MICROS];
    int num;
    int64_t targets = 0;
    double sums[2] = {0}, norm = 0;
    tt_status status = trial_micros(e, b, joint, micros, &num);
    if (status == TT_OK) status = tt_count_targets(e->mesh, micros, num, &targets);
    tt_shards_zero_gradients(e->shards, e->kernel);
    for (int i = 0; i < num && status == TT_OK; i++)
        status = one_micro(e, &micros[i], targets ? 1 / (double)targets : 0, balance, replay, out, sums);
    for (int i = 0; i < num; i++) tt_batch_free(&micros[i]);
    if (status == TT_OK) status = tt_allreduce_f64(e->mesh->world, "test-nll", sums, 1);
    if (status == TT_OK) status = tt_gradient_norm(&e->model, &norm);
    TT_TRY(status);
    trial_collect(e, s, TT_PART_GRADIENT, out->gradients);
    if (e->mesh->rank == 0) out->nll = sums[0], out->balance = sums[1], out->norm = norm, out->targets = targets;
    return TT_OK;
}

/* --- one process --------------------------------------------------------------------------------------------- */

/* Distance of the n-th largest of x[size] to the next; sorts x. */
static double distance(double *x, int size, int n)
{
    for (int i = 1; i < size; i++)
        for (int j = i; j > 0 && x[j] > x[j - 1]; j--) {
            double swap = x[j];
            x[j] = x[j - 1], x[j - 1] = swap;
        }
    return n < size ? x[n - 1] - x[n] : INFINITY;
}

/* One process owns every element. */
static const float *router_bias(const tt_engine *e, int layer)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++)
        if (pieces[i].param == e->table.layers[layer].router_bias)
            return tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT).data;
    return NULL;
}

static double gap_of(const tt_model_config *c, const float *bias, const float *logits)
{
    int E = (int)c->num_experts, groups = bias ? (int)c->expert_groups : 1, width = E / groups;
    double score[64], group[64], copy[64], gap = INFINITY;
    for (int e = 0; e < E; e++) score[e] = bias ? 1 / (1 + exp(-logits[e])) + bias[e] : logits[e];
    for (int g = 0; g < groups && groups > 1; g++) {
        memcpy(copy, score + g * width, (size_t)width * sizeof *copy);
        distance(copy, width, 1);
        group[g] = copy[0] + copy[1];
    }
    if (groups > 1) {
        memcpy(copy, group, (size_t)groups * sizeof *copy);
        gap = distance(copy, groups, (int)c->kept_groups);
        for (int e = 0; e < E; e++)
            if (group[e / width] < copy[c->kept_groups - 1]) score[e] = -INFINITY;
    }
    return fmin(gap, distance(score, E, (int)c->experts_per_token));
}

void trial_watch_gap(void *user, const char *what, int layer, tt_mat m)
{
    trial_watch *w = user;
    const tt_model_config *c = &w->engine->config;
    if (strcmp(what, "router_logits") != 0) return;
    const float *bias = c->router == TT_ROUTER_SIGMOID ? router_bias(w->engine, layer) : NULL;
    for (int64_t t = 0; t < m.rows; t++) {
        const float *logits = tt_mat_row(m, t);
        bool zeros =
            true; /* the padding token in front of a row: its embedding is 0, and ties are exact everywhere */
        for (int64_t e = 0; e < m.cols; e++) zeros = zeros && logits[e] == 0;
        if (!zeros) w->gap = fmin(w->gap, gap_of(c, bias, logits));
    }
}

typedef struct reference {
    const trial_shape *shape;
    const trial_batch *batch;
    bool joint;
    double balance, gap;
    trial_result *out;
} reference;

static tt_status reference_main(tt_engine *e, void *arg)
{
    reference *r = arg;
    trial_watch watch = {e, INFINITY};
    e->model.tap = trial_watch_gap;
    e->model.tap_user = &watch;
    tt_status status = trial_gradients(e, r->shape, r->batch, r->joint, r->balance, NULL, r->out);
    r->gap = watch.gap;
    return status;
}

void trial_reference(const trial_shape *s, const trial_batch *b, bool joint, double balance, trial_result *out)
{
    reference r = {.shape = s, .batch = b, .joint = joint, .balance = balance, .out = out};
    trial_run run = {.model = s->model, .mesh = TRIAL_MESH(1, 1)};
    assert_ok(trial_result_open(s, out));
    assert_ok(trial_on_mesh(&run, reference_main, &r));
    if (!s->model->ties && r.gap < TRIAL_CLEAR)
        fail_msg("%s, %s: an expert is chosen by %g only; take another seed", s->model->name, b->plan->name, r.gap);
}

/* --- comparison ---------------------------------------------------------------------------------------------- */

static double norm_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static void compare_tensor(const char *what, const tt_param *p, const float *got, const float *expected,
                           double tolerance, double largest)
{
    double sum = 0, worst = 0, norm = norm_of(expected, p->count);
    for (int64_t i = 0; i < p->count; i++) {
        double d = fabs((double)got[i] - expected[i]);
        sum += d * d;
        if (!(d <= worst)) worst = d;
    }
    bool idle = p->expert >= 0 && norm == 0;
    bool good = idle ? worst == 0 : sqrt(sum) <= tolerance * norm + 1e-6 * largest;
    if (!good)
        fail_msg("%s: '%s': difference %g of norm %g (relative %g, largest element %g)", what, p->name, sqrt(sum),
                 norm, sqrt(sum) / norm, worst);
}

void trial_compare(const trial_shape *s, const char *what, const float *got, const float *expected, double tolerance)
{
    const tt_params *params = &s->table.params;
    double largest = 0;
    for (int64_t i = 0; i < params->num; i++)
        if (params->at[i].trained) largest = fmax(largest, norm_of(expected + s->begin[i], params->at[i].count));
    for (int64_t i = 0; i < params->num; i++)
        if (params->at[i].trained)
            compare_tensor(what, &params->at[i], got + s->begin[i], expected + s->begin[i], tolerance, largest);
}

void trial_same_bits(const trial_shape *s, const char *what, const float *got, const float *expected)
{
    for (int64_t i = 0; i < s->table.params.num; i++) {
        const tt_param *p = &s->table.params.at[i];
        for (int64_t j = s->begin[i]; j < s->begin[i + 1]; j++)
            if (memcmp(&got[j], &expected[j], sizeof *got) != 0)
                fail_msg("%s: '%s'[%lld] is %.9g, expected %.9g", what, p->name, (long long)(j - s->begin[i]), got[j],
                         expected[j]);
    }
}
