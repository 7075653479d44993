#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mydist {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "mydist: internal error at %s:%d: %s does not hold. Please report this.\n",
               file, line, condition);
  std::abort();
}

}  // namespace mydist
