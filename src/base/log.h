/* log.h - progress and warnings on stderr. Results go to stdout; errors are statuses (tartan/status.h).
 *
 * One rank speaks: the others are set silent by src/cli. Warnings that may repeat for every row are counted and
 * reported once by their callers, not here. */
#ifndef TT_BASE_LOG_H
#define TT_BASE_LOG_H

#include <stdbool.h>

typedef enum tt_log_level { TT_LOG_SILENT, TT_LOG_WARN, TT_LOG_INFO, TT_LOG_DEBUG } tt_log_level;

/* Per thread, since ranks may be threads. Default TT_LOG_INFO. */
void tt_log_set_level(tt_log_level level);
tt_log_level tt_log_get_level(void);

/* One line each, "tartan: " or "tartan: warning: " in front, newline added, written with a single write. */
void tt_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tt_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Called with every warning of this thread too (tests); NULL removes it. */
void tt_log_set_hook(void (*hook)(void *user, tt_log_level level, const char *text), void *user);

#endif
