/* tartan/status.h - how every tartan function reports failure.
 *
 * A fallible function returns a tt_status; results go through pointers. TT_OK is 0.
 * The text that explains a failure is kept per thread, so ranks that are threads do not mix theirs up:
 * the function that fails writes it, callers may put a line of context in front.
 * The library never exits and never prints an error; src/cli turns a status into an exit code.
 */
#ifndef TARTAN_STATUS_H
#define TARTAN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* name, exit status of the program, what it means */
#define TT_STATUS_MAP(X)                                                                                     \
    X(OK, 0, "success")                                                                                      \
    X(ECONFIG, 2, "wrong usage or configuration")                                                            \
    X(EIO, 1, "a file could not be read or written")                                                         \
    X(EFORMAT, 1, "a file does not hold what it should")                                                     \
    X(EMISMATCH, 1, "a checkpoint and a model do not fit")                                                   \
    X(EDATA, 1, "training data cannot be used")                                                              \
    X(ENOMEM, 1, "out of memory, or a size beyond the machine")                                              \
    X(ENONFINITE, 1, "a loss or a norm is not finite")                                                       \
    X(ECOMM, 1, "a rank or a link failed")                                                                   \
    X(EVERDICT, 1, "a check ran and did not pass")                                                           \
    X(EINTERNAL, 1, "a broken invariant of tartan")

typedef enum tt_status {
#define X(name, exit_status, text) TT_##name,
    TT_STATUS_MAP(X)
#undef X
} tt_status;

/* tt_status_name - "ECONFIG" for TT_ECONFIG; never NULL. Local. */
const char *tt_status_name(tt_status s);

/* tt_status_exit - exit status of the program for s: 0, 1 or 2. Local. */
int tt_status_exit(tt_status s);

/* tt_error_text - the message of this thread's last failure, "" if there was none.
 * Borrowed: valid until the next failure on this thread. Local. */
const char *tt_error_text(void);

/* tt_error_set - store a message for this thread and return s, so that `return tt_error_set(...)` reads well.
 * The message names the file, the key, the value and the remedy; it has no trailing newline. */
tt_status tt_error_set(tt_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* tt_error_context - put "context: " in front of this thread's message; returns s unchanged. */
tt_status tt_error_context(tt_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Leave the function with the status of a call that failed. */
#define TT_TRY(call)                                                                                         \
    do {                                                                                                     \
        tt_status tt_try_ = (call);                                                                          \
        if (tt_try_ != TT_OK) return tt_try_;                                                                \
    } while (0)

/* Same, for functions that hold resources: sets `status` and jumps to `fail`. */
#define TT_GO(call)                                                                                          \
    do {                                                                                                     \
        status = (call);                                                                                     \
        if (status != TT_OK) goto fail;                                                                      \
    } while (0)

/* Leave with a message unless cond holds: a check of what users, files or peers gave us. */
#define TT_CHECK(cond, code, ...)                                                                            \
    do {                                                                                                     \
        if (!(cond)) return tt_error_set((code), __VA_ARGS__);                                               \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
