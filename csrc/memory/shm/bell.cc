#include "memory/shm/bell.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace mydist::shm {

void RingBell(Bell& bell) {
  bell.rings.fetch_add(1);
  WakeSleepers(bell);
}

void WakeSleepers(Bell& bell) {
  syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SleepOnBell(Bell& bell, uint32_t rings, std::chrono::nanoseconds limit) {
  const timespec timeout{static_cast<time_t>(limit.count() / 1'000'000'000),
                         static_cast<long>(limit.count() % 1'000'000'000)};
  if (bell.rings.load() == rings) {
    syscall(SYS_futex, &bell.rings, FUTEX_WAIT, rings, &timeout, nullptr, 0);
  }
  return bell.rings.load() != rings;
}

bool AcceptSleeperBarriers() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
         SleeperBarrier();
}

bool SleeperBarrier() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

}  // namespace mydist::shm
