#include "train/schedule.h"

#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- parameters ----------------------------------------------------------------------------------------- */

/* Parameters as they were given, before their meaning is known; NaN and NULL: not given. */
typedef struct given {
    double num_cycles, lr_end, power, timescale, min_lr, min_lr_rate, warmup_lr_rate;
    double num_decay_steps, num_stable_steps, min_lr_ratio;
    const char *warmup_type, *decay_type;
} given;

#define KIND(name) (1u << TT_SCHEDULE_##name)
enum {
    FLOORED = KIND(COSINE_WITH_MIN_LR) | KIND(COSINE_WARMUP_WITH_MIN_LR),
    WSD = KIND(WARMUP_STABLE_DECAY)
};

static const struct {
    const char *name;
    unsigned kinds; /* that have it */
    size_t offset;
    bool text, count; /* a word; a whole number */
    double min, max;
} parameters[] = {
    {"num_cycles", KIND(COSINE) | KIND(COSINE_WITH_RESTARTS) | FLOORED | WSD, offsetof(given, num_cycles), 0,
     0, 0, 1e9},
    {"lr_end", KIND(POLYNOMIAL), offsetof(given, lr_end), 0, 0, 0, 1e9},
    {"power", KIND(POLYNOMIAL), offsetof(given, power), 0, 0, 0, 1e9},
    {"timescale", KIND(INVERSE_SQRT), offsetof(given, timescale), 0, 0, 1e-9, 1e15},
    {"min_lr", FLOORED, offsetof(given, min_lr), 0, 0, 0, 1e9},
    {"min_lr_rate", FLOORED, offsetof(given, min_lr_rate), 0, 0, 0, 1},
    {"warmup_lr_rate", KIND(COSINE_WARMUP_WITH_MIN_LR), offsetof(given, warmup_lr_rate), 0, 0, 0, 1},
    {"num_decay_steps", WSD, offsetof(given, num_decay_steps), 0, 1, 0, 1e15},
    {"num_stable_steps", WSD, offsetof(given, num_stable_steps), 0, 1, 0, 1e15},
    {"min_lr_ratio", WSD, offsetof(given, min_lr_ratio), 0, 0, 0, 1},
    {"warmup_type", WSD, offsetof(given, warmup_type), 1, 0, 0, 0},
    {"decay_type", WSD, offsetof(given, decay_type), 1, 0, 0, 0},
};
enum { NUM_PARAMETERS = sizeof parameters / sizeof *parameters };

static const struct {
    const char *word;
    bool built;
} kinds[] = {
#define X(name, word, built) {word, built},
    TT_SCHEDULE_MAP(X)
#undef X
};

static tt_status unknown_parameter(tt_schedule_kind kind, const char *name)
{
    char known[200] = "none";
    size_t n = 0;
    for (int i = 0; i < NUM_PARAMETERS; i++)
        if (parameters[i].kinds & 1u << kind && n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", parameters[i].name);
    return tt_error_set(TT_ECONFIG, "schedule %s has no parameter '%.60s'; it has: %s", kinds[kind].word,
                        name, known);
}

/* A number, or a text that spells one (YAML 1.1 makes a text of 1e-5). */
static bool read_number(const json_t *v, double *out)
{
    if (json_is_number(v)) {
        *out = json_number_value(v);
    } else {
        const char *text = json_string_value(v);
        char *end;
        if (!text || !*text || strspn(text, "0123456789+-.eE") != json_string_length(v)) return false;
        *out = strtod(text, &end);
        if (*end) return false;
    }
    return isfinite(*out);
}

static tt_status read_parameter(given *g, tt_schedule_kind kind, const char *name, const json_t *v)
{
    int i = 0;
    while (i < NUM_PARAMETERS && strcmp(name, parameters[i].name) != 0) i++;
    if (i == NUM_PARAMETERS || !(parameters[i].kinds & 1u << kind)) return unknown_parameter(kind, name);
    void *slot = (char *)g + parameters[i].offset;
    if (json_is_null(v)) return TT_OK;
    if (parameters[i].text) {
        TT_CHECK(json_is_string(v), TT_ECONFIG, "parameter %s is %s; expected linear, cosine or 1-sqrt", name,
                 tt_json_kind(v));
        *(const char **)slot = json_string_value(v);
        return TT_OK;
    }
    double x = NAN;
    bool good = read_number(v, &x) && x >= parameters[i].min && x <= parameters[i].max;
    TT_CHECK(good && (!parameters[i].count || x == floor(x)), TT_ECONFIG,
             "parameter %s is %s %.17g; expected a %s from %g to %g", name, tt_json_kind(v), x,
             parameters[i].count ? "whole number" : "number", parameters[i].min, parameters[i].max);
    *(double *)slot = x;
    return TT_OK;
}

static double or_default(double x, double standard)
{
    return isnan(x) ? standard : x;
}

static tt_status read_shape(const char *parameter, const char *word, tt_schedule_shape standard,
                            tt_schedule_shape *out)
{
    static const char *const words[] = {"linear", "cosine", "1-sqrt"};
    *out = standard;
    if (!word) return TT_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (tt_schedule_shape)i;
            return TT_OK;
        }
    return tt_error_set(TT_ECONFIG, "parameter %s is '%.60s'; expected linear, cosine or 1-sqrt", parameter,
                        word);
}

/* r: exactly one of min_lr and min_lr_rate. */
static tt_status set_floor(tt_schedule *s, const given *g)
{
    TT_CHECK(!isnan(g->min_lr) || !isnan(g->min_lr_rate), TT_ECONFIG,
             "schedule %s needs min_lr or min_lr_rate; set one of them in lr_scheduler_kwargs",
             kinds[s->kind].word);
    TT_CHECK(isnan(g->min_lr) || isnan(g->min_lr_rate), TT_ECONFIG,
             "min_lr and min_lr_rate are both set; leave one of them out");
    TT_CHECK(isnan(g->min_lr) || s->learning_rate > 0, TT_ECONFIG,
             "min_lr is a share of learning_rate, which is 0; set min_lr_rate instead");
    s->floor = isnan(g->min_lr) ? g->min_lr_rate : g->min_lr / s->learning_rate;
    return TT_OK;
}

static tt_status set_stable_decay(tt_schedule *s, const given *g)
{
    TT_CHECK(!isnan(g->num_decay_steps), TT_ECONFIG,
             "schedule warmup_stable_decay needs num_decay_steps; set it in lr_scheduler_kwargs");
    s->floor = or_default(g->min_lr_ratio, 0);
    s->num_decay_steps = (int64_t)g->num_decay_steps;
    /* Negative when warm-up and decay do not fit: the decay then begins in its middle, as the formula says. */
    s->num_stable_steps =
        isnan(g->num_stable_steps) ? s->total - s->warmup - s->num_decay_steps : (int64_t)g->num_stable_steps;
    TT_TRY(read_shape("warmup_type", g->warmup_type, TT_SHAPE_LINEAR, &s->warmup_shape));
    return read_shape("decay_type", g->decay_type, TT_SHAPE_COSINE, &s->decay_shape);
}

static tt_status set_kind(tt_schedule *s, const given *g)
{
    s->num_cycles = or_default(g->num_cycles, s->kind == TT_SCHEDULE_COSINE_WITH_RESTARTS ? 1 : 0.5);
    s->lr_end = or_default(g->lr_end, 1e-7);
    s->power = or_default(g->power, 1);
    s->timescale = or_default(g->timescale, s->warmup > 0 ? (double)s->warmup : 10000);
    s->warmup_lr_rate = g->warmup_lr_rate;
    TT_CHECK(s->kind != TT_SCHEDULE_POLYNOMIAL || s->learning_rate > s->lr_end, TT_ECONFIG,
             "lr_end %g is not below learning_rate %g; set a smaller lr_end in lr_scheduler_kwargs",
             s->lr_end, s->learning_rate);
    if (1u << s->kind & FLOORED) return set_floor(s, g);
    if (1u << s->kind & WSD) return set_stable_decay(s, g);
    return TT_OK;
}

tt_status tt_schedule_init(tt_schedule *s, tt_schedule_kind kind, const json_t *kwargs, double learning_rate,
                           int64_t total, int64_t warmup)
{
    TT_CHECK(kinds[kind].built, TT_ECONFIG,
             "schedule %s is not supported yet; set lr_scheduler_type to another", kinds[kind].word);
    *s = (tt_schedule){.kind = kind, .learning_rate = learning_rate, .total = total, .warmup = warmup};
    given g = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NULL, NULL};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)kwargs, name, v) TT_TRY(read_parameter(&g, kind, name, v));
    return set_kind(s, &g);
}

int64_t tt_schedule_warmup(double warmup_steps, int64_t total)
{
    return (int64_t)(warmup_steps >= 1 ? warmup_steps : ceil((double)total * warmup_steps));
}

/* --- factors -------------------------------------------------------------------------------------------- */

static double at_least_one(int64_t n)
{
    return n > 1 ? (double)n : 1.0;
}

static double not_negative(double x)
{
    return x > 0 ? x : 0;
}

static double cosine(const tt_schedule *s, double progress)
{
    return 0.5 * (1.0 + cos(M_PI * s->num_cycles * 2.0 * progress));
}

static double raised(const tt_schedule *s, double factor)
{
    return not_negative(factor * (1 - s->floor) + s->floor);
}

static double warmup_floored(const tt_schedule *s, double step)
{
    if (isnan(s->warmup_lr_rate)) return (step + 1) / at_least_one(s->warmup);
    return s->warmup_lr_rate + (1.0 - s->warmup_lr_rate) * step / at_least_one(s->warmup - 1);
}

static double rising(tt_schedule_shape shape, double x)
{
    if (shape == TT_SHAPE_LINEAR) return x;
    return shape == TT_SHAPE_COSINE ? 0.5 * (1.0 - cos(M_PI * x)) : 1.0 - sqrt(1.0 - x);
}

static double falling(const tt_schedule *s, double x)
{
    if (s->decay_shape == TT_SHAPE_LINEAR) return 1.0 - x;
    return s->decay_shape == TT_SHAPE_COSINE ? cosine(s, x) : 1.0 - sqrt(x);
}

static double stable_decay(const tt_schedule *s, int64_t step)
{
    int64_t decay = s->warmup + s->num_stable_steps;
    if (step < s->warmup) return raised(s, rising(s->warmup_shape, (double)step / at_least_one(s->warmup)));
    if (step < decay) return 1.0;
    if (step >= decay + s->num_decay_steps) return s->floor;
    return raised(s, falling(s, (double)(step - decay) / at_least_one(s->num_decay_steps)));
}

static double polynomial(const tt_schedule *s, int64_t step, double p)
{
    if (step > s->total) return s->lr_end / s->learning_rate;
    return ((s->learning_rate - s->lr_end) * pow(1 - p, s->power) + s->lr_end) / s->learning_rate;
}

double tt_schedule_factor(const tt_schedule *s, int64_t step)
{
    if (s->kind == TT_SCHEDULE_CONSTANT) return 1;
    if (s->kind == TT_SCHEDULE_WARMUP_STABLE_DECAY) return stable_decay(s, step);
    if (step < s->warmup)
        return s->kind == TT_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR ? warmup_floored(s, (double)step)
                                                                : (double)step / at_least_one(s->warmup);
    double span = at_least_one(s->total - s->warmup), after = (double)(step - s->warmup), p = after / span;
    switch (s->kind) {
    case TT_SCHEDULE_LINEAR:
        return not_negative((double)(s->total - step) / span);
    case TT_SCHEDULE_COSINE:
        return not_negative(cosine(s, p));
    case TT_SCHEDULE_COSINE_WITH_RESTARTS:
        return p >= 1 ? 0 : not_negative(0.5 * (1.0 + cos(M_PI * fmod(s->num_cycles * p, 1.0))));
    case TT_SCHEDULE_POLYNOMIAL:
        return polynomial(s, step, p);
    case TT_SCHEDULE_INVERSE_SQRT:
        return 1.0 / sqrt(((double)(step - s->warmup) + s->timescale) / s->timescale);
    case TT_SCHEDULE_COSINE_WITH_MIN_LR:
        return raised(s, cosine(s, p));
    case TT_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR:
        return raised(s, cosine(s, (after + 1) / span));
    default:
        return 1; /* constant_with_warmup */
    }
}

double tt_schedule_rate(const tt_schedule *s, int64_t step)
{
    return s->learning_rate * tt_schedule_factor(s, step);
}
