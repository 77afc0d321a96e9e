/* hosts.h - what a run on several hosts needs from their file systems, found out before it costs anything.
 *
 *   model      every rank reads its own ranges: one shared folder, or copies with equal contents
 *   output     every rank writes its own ranges into the same files: a shared folder
 *   data       every rank prepares all rows: a shared file, or equal copies
 *
 * Hosts are told apart by their names, which ranks exchange. With one name nothing else is done or read. Otherwise every
 * rank holds what it sees against what rank 0 sees: config.json has the same size, time and number (it is shared, and no
 * more is asked), or else all names, sizes and headers of the model's files are compared, but not the weights. A file that
 * rank 0 makes beside the results must show up on the other ranks within seconds, and be writable there; it is removed again.
 *
 * Messages name the hosts, the path and the remedy. All functions are collective over the world; all ranks return the same.
 */
#ifndef TT_TRAIN_HOSTS_H
#define TT_TRAIN_HOSTS_H

#include "tartan/comm.h"

/* What this rank is to look at. Zeroed members are left out; tests pretend hosts and folders. */
typedef struct tt_host_view {
    const char *host;   /* NULL: gethostname */
    const char *model;  /* folder */
    const char *data;   /* file or folder */
    const char *output; /* file or folder, which need not exist yet */
} tt_host_view;

/* tt_hosts_check - TT_ECONFIG for what a host lacks or does not share, TT_EMISMATCH for copies of a model that differ. What is
 * missing everywhere is left to those who need it. */
tt_status tt_hosts_check(tt_comm *comm, const tt_host_view *v);

/* tt_hosts_check_data - fingerprint: of what this rank has made of paths[num] (NULLs are passed over). TT_EDATA when ranks
 * have made different things, naming the first path whose contents differ; those are only then read. v->host is used. */
tt_status tt_hosts_check_data(tt_comm *comm, const tt_host_view *v, uint64_t fingerprint, const char *const *paths,
                              int num);

#endif
