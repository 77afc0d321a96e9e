/* stop.h - signals that ask a run to end: SIGUSR1, which batch systems send before the time is up, and SIGTERM.
 *
 * The first is only noted, and the run ends behind the step at hand (train/sft.h, tt_sft_hooks.stop). A second one ends the
 * process at once, with the status that a shell gives for it, 128 + its number; what was printed is out already, since
 * stderr has no buffer. Some senders deliver one signal twice, to the process and to its group (timeout does), so what
 * arrives within a second of the first is taken for the same.
 *
 * A signal handler has no argument: this state is the process's, which is why it lives here and not in the library.
 */
#ifndef TT_CLI_STOP_H
#define TT_CLI_STOP_H

/* tt_stop_catch - from now on. Local. */
void tt_stop_catch(void);

/* tt_stop_asked - number of the first signal so far, 0 for none. user is ignored. Local. */
int tt_stop_asked(void *user);

/* "SIGUSR1" or "SIGTERM". */
const char *tt_stop_name(int number);

#endif
