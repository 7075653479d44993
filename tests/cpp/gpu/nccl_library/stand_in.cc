// A library that looks like NCCL from outside. STAND_IN_VERSION is its version; without it there is
// no function for that. Without STAND_IN_SEND it lacks ncclSend. Nobody calls the others.
#include "base/export.h"

#define STAND_IN(name) \
  MYDIST_EXPORT int name() { return 3; }

extern "C" {

#ifdef STAND_IN_VERSION
MYDIST_EXPORT int ncclGetVersion(int* version) {
  *version = STAND_IN_VERSION;
  return 0;
}
#endif

STAND_IN(ncclGetErrorString)
STAND_IN(ncclGetUniqueId)
STAND_IN(ncclCommInitRankConfig)
STAND_IN(ncclCommFinalize)
STAND_IN(ncclCommDestroy)
STAND_IN(ncclCommAbort)
STAND_IN(ncclCommGetAsyncError)
STAND_IN(ncclGroupStart)
STAND_IN(ncclGroupEnd)
STAND_IN(ncclAllReduce)
STAND_IN(ncclReduce)
STAND_IN(ncclBroadcast)
STAND_IN(ncclAllGather)
STAND_IN(ncclReduceScatter)
#ifdef STAND_IN_SEND
STAND_IN(ncclSend)
#endif
STAND_IN(ncclRecv)
STAND_IN(ncclRedOpCreatePreMulSum)
STAND_IN(ncclRedOpDestroy)

}  // extern "C"
