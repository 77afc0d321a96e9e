/* Models of odd shapes through files, from any mesh to any other: every expert is its tensor, a trained model is that of one
 * process, what is not trained keeps its bytes, and a rank reads what it owns and no more. */
#include "support/test.h"
#include "support/trial.h"

#include "base/file.h"
#include "checkpoint/save.h"
#include "tensor/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"olmoe, 10 experts, tied, clamped", "qwen3, smaller than the world, tied",
                                    "qwen3, a dense layer between", "glm4, groups, shared, tied", "glm4, 10 experts"};
enum { NUM_MODELS = sizeof names / sizeof *names };

typedef struct file_job {
    const trial_shape *shape;
    const trial_batch *batch; /* one step of descent on it before saving; NULL: as they are */
    const char *to;           /* NULL: do not save */
    float *weights;           /* [total]; as loaded, before any step */
    int64_t elements;         /* of all ranks */
} file_job;

static tt_status step_once(tt_engine *e, const trial_batch *b)
{
    tt_batch micros[TRIAL_MAX_MICROS];
    tt_step_result r;
    int num;
    tt_step_options o = {.optimizer = TT_OPTIM_SGD, .lr = 0.5, .weight_decay = 0.1, .max_grad_norm = 1, .step = 1};
    TT_TRY(trial_micros(e, b, false, micros, &num));
    tt_status status = tt_train_step(&e->model, micros, num, &o, &r);
    for (int i = 0; i < num; i++) tt_batch_free(&micros[i]);
    return status;
}

/* Owned elements are read once, in the type of the file, and nothing else is. */
static tt_status check_load(const tt_engine *e, int64_t *elements)
{
    int64_t num, owned = 0, bytes = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        owned += pieces[i].count;
        bytes += pieces[i].count * (int64_t)tt_dtype_size(e->table.params.at[pieces[i].param].stored);
    }
    *elements = e->load.elements;
    TT_CHECK(e->load.elements == owned && e->load.bytes_read == bytes, TT_EVERDICT,
             "rank %d read %lld elements, %lld bytes; it owns %lld, %lld", e->mesh->rank, (long long)e->load.elements,
             (long long)e->load.bytes_read, (long long)owned, (long long)bytes);
    return tt_allreduce_i64(e->mesh->world, "test-elements", elements, 1);
}

static tt_status through_files(tt_engine *e, void *arg)
{
    file_job *j = arg;
    int64_t elements = 0;
    tt_save_report report;
    bool loaded = e->source.tensor != NULL;
    if (loaded) TT_TRY(check_load(e, &elements));
    if (e->mesh->rank == 0) j->elements = elements;
    trial_collect(e, j->shape, TT_PART_WEIGHT, j->weights);
    if (j->batch) TT_TRY(step_once(e, j->batch));
    if (!j->to) return TT_OK;
    tt_save_options o = {
        .source = loaded ? &e->source : NULL, .config = e->config.source, .max_file_bytes = 20000, .overwrite = true};
    return tt_save_model(j->to, e->shards, &o, &report);
}

static bool same_bytes(const tt_st_folder *a, const tt_st_folder *b, const char *name)
{
    const tt_st_tensor *x = tt_st_find(a, name), *y = tt_st_find(b, name);
    size_t n = (size_t)(x->end - x->begin);
    assert_int_equal(n, y->end - y->begin);
    char *p = malloc(2 * n + 1);
    assert_ok(tt_file_read_at(&a->files[x->file], x->begin, p, n));
    assert_ok(tt_file_read_at(&b->files[y->file], y->begin, p + n, n));
    bool same = memcmp(p, p + n, n) == 0;
    free(p);
    return same;
}

/* Trained models of a mesh and of one process: equal to rounding, and equal in what is not trained. */
static void compare_folders(const trial_shape *s, const char *source, const char *got, const char *want)
{
    tt_st_folder files[3];
    const char *folders[] = {source, got, want};
    float *x = calloc((size_t)s->total * 2, sizeof *x);
    for (int i = 0; i < 3; i++) assert_ok(tt_st_open_folder(folders[i], &files[i]));
    assert_int_equal(files[1].num_tensors, s->table.params.num);
    assert_int_equal(files[1].num_files, files[0].num_files);
    for (int64_t i = 0; i < s->table.params.num; i++) {
        const tt_param *p = &s->table.params.at[i];
        for (int k = 0; k < 2; k++)
            assert_ok(tt_st_read(&files[1 + k], tt_st_find(&files[1 + k], p->name), 0, p->count, TT_F32,
                                 x + s->begin[i] + k * s->total));
        if (same_bytes(&files[0], &files[1], p->name) != !p->trained)
            fail_msg("%s: '%s' %s", s->model->name, p->name, p->trained ? "did not move" : "is not what it was");
    }
    trial_compare(s, s->model->name, x, x + s->total, 1e-5);
    for (int i = 0; i < 3; i++) tt_st_close(&files[i]);
    free(x);
}

static void from_any_mesh_to_any_mesh(void **state)
{
    (void)state;
    char root[1100], source[1200], out[1200], one[1200];
    snprintf(root, sizeof root, "%s", test_folder("layout-files"));
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(one, sizeof one, "%s/one", root);
    for (int m = 0; m < NUM_MODELS; m++) {
        trial_shape s;
        trial_batch b;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
        float *all = calloc((size_t)s.total * 2, sizeof *all);
        file_job first = {&s, NULL, source, all, 0}, trained = {&s, &b, one, all + s.total, 0};
        trial_run run = {.model = s.model, .mesh = TRIAL_MESH(1, 1)},
                  files = {.model = s.model, .mesh = TRIAL_MESH(1, 1), .folder = source};
        assert_ok(trial_on_mesh(&run, through_files, &first));
        assert_ok(trial_on_mesh(&files, through_files, &trained));
        for (int i = 0; i < trial_num_meshes; i++) {
            file_job saved = {&s, NULL, source, all + s.total, 0}, j = {&s, &b, out, all + s.total, 0};
            run.mesh = trial_turn(&s, trial_meshes[i], m + i);
            files.mesh = trial_turn(&s, trial_meshes[trial_num_meshes - 1 - i], m + i);
            if (trial_mesh_fits(&s, run.mesh)) {
                /* Written by one mesh ... */
                assert_ok(trial_on_mesh(&run, through_files, &saved));
                trial_same_bits(&s, s.model->name, all + s.total, all);
            }
            if (!trial_mesh_fits(&s, files.mesh)) continue;
            /* ... read by another, trained, written, and read by one process above. */
            memset(all + s.total, 0xFF, (size_t)s.total * sizeof *all);
            assert_ok(trial_on_mesh(&files, through_files, &j));
            trial_same_bits(&s, s.model->name, all + s.total, all);
            assert_int_equal(j.elements, s.total);
            compare_folders(&s, source, out, one);
        }
        free(all);
        trial_shape_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_any_mesh_to_any_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
