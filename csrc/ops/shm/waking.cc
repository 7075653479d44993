#include "ops/shm/waking.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

namespace mydist::shm {

bool AcceptSleeperBarriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void SleeperBarrier() {
  // Cannot fail: this process has registered as well.
  MYDIST_CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0);
}

}  // namespace mydist::shm
