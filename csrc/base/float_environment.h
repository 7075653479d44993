// DefaultFloatEnvironment: for its lifetime this thread computes as a fresh process does, whatever
// its program has set (flushing of denormals, rounding). Results must not depend on which thread of
// which rank computes them.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace mydist {

class DefaultFloatEnvironment {
 public:
#if defined(__SSE__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kDefault = 0x1f80;  // All exceptions masked, nothing else set.
  const unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace mydist
