#include "contender.h"

namespace mydist::bench {

Entry MakeGloo(Ranks*, int64_t) {
  return {"gloo", nullptr, "built without Gloo (Debian: apt-get install libgloo-dev)"};
}

}  // namespace mydist::bench
