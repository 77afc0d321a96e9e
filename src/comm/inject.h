/* inject.h - failures on purpose, for tests of what becomes of the other ranks. In the test build only (-DTT_FAULT_SWITCHES).
 *
 *   TARTAN_FAIL=RANK:PHASE:OPERATION:KIND[:COUNT]
 *
 * When rank RANK begins the COUNT-th (default first) OPERATION of PHASE ("*": any), it fails by KIND:
 *   error   the operation returns an error            exit    the process ends without a word
 *   abort   tt_comm_abort                             kill    SIGKILL
 *   assert  a broken invariant                        stop    SIGSTOP
 *   segv    a crash                                   spin    computes for ever
 *   memory  an allocation that fails                  sleep   sleeps for two seconds, then goes on
 */
#ifndef TT_COMM_INJECT_H
#define TT_COMM_INJECT_H

#include "tartan/comm.h"

#ifdef TT_FAULT_SWITCHES
tt_status tt_inject(tt_comm *comm, const char *operation);
#else
static inline tt_status tt_inject(tt_comm *comm, const char *operation)
{
    (void)comm, (void)operation;
    return TT_OK;
}
#endif

#endif
