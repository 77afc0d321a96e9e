/* The fuzz target as an ordinary test: every input of its corpus, which does what its name says. */
#include "support/test.h"

#include "../../fuzz/fuzz_safetensors.c"

#include <dirent.h>

static void the_corpus_does_what_it_says(void **state)
{
    (void)state;
    static const char corpus[] = "fuzz/corpus/safetensors";
    DIR *dir = opendir(corpus);
    int accepted = 0, refused = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[600], *text;
        size_t bytes;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", corpus, e->d_name);
        assert_ok(tt_file_read_all(path, 1 << 20, &text, &bytes));
        tt_status status = try_input((const uint8_t *)text, bytes);
        free(text);
        bool accept = strncmp(e->d_name, "accept-", 7) == 0;
        if (!accept && strncmp(e->d_name, "refuse-", 7) != 0) continue;
        if (accept != (status == TT_OK)) fail_msg("%s: %s", path, accept ? tt_error_text() : "was accepted");
        *(accept ? &accepted : &refused) += 1;
    }
    closedir(dir);
    assert_true(accepted >= 7 && refused >= 20);
}

/* Of the seeds four are models: each form of the tiny one matches its table. */
static void every_form_matches(void **state)
{
    (void)state;
    static const char *const names[] = {"apart", "stacked", "fp8", "mtp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200], *text;
        size_t bytes;
        snprintf(path, sizeof path, "fuzz/corpus/safetensors/accept-%s", names[i]);
        assert_ok(tt_file_read_all(path, 1 << 20, &text, &bytes));
        assert_ok(try_input((const uint8_t *)text, bytes));
        assert_ok(match());
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_corpus_does_what_it_says),
        cmocka_unit_test(every_form_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
