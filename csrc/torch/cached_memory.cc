#include "torch/cached_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#if __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <exception>

#include "base/log.h"
#include "memory/device/memory_shortage.h"

namespace mydist {
namespace {

// Older versions of torch have no such function: it is looked for where it would be.
namespace lookup {

using namespace c10;  // NOLINT(google-build-using-namespace)

template <typename Type>
constexpr bool kHasCaches = requires(Type type) {
  getDeviceAllocator(type)->emptyCache();
};

template <typename Type>
void EmptyCache([[maybe_unused]] Type type) {
  if constexpr (kHasCaches<Type>) getDeviceAllocator(type)->emptyCache();
}

}  // namespace lookup

void Warn(const char* why) {
  MYDIST_LOG(kWarning) << "torch did not give back the memory that it keeps: " << why;
}

// Of all GPUs, as torch has no other way. It may wait for what still uses such memory, as every
// cudaFree does.
void GiveBackCache(int device) noexcept {
  MYDIST_LOG(kDebug) << "GPU " << device << " has no memory left: torch gives back what it keeps";
  try {
    lookup::EmptyCache(c10::DeviceType::CUDA);
  } catch (const c10::Error& error) {
    Warn(error.what_without_backtrace());
  } catch (const std::exception& error) {
    Warn(error.what());
  } catch (...) {
    Warn("no exception of C++'s own");
  }
}

// Torch's allocator ends with the process: later than this, which was made after torch was loaded.
class Offer {
 public:
  Offer() { OnMemoryShortage(&GiveBackCache); }
  ~Offer() { OnMemoryShortage(nullptr); }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;
};

}  // namespace

void OfferCachedMemory() { static const Offer kOffer; }

}  // namespace mydist
