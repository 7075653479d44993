// Copies past the caches, at every alignment.
#include "memory/shm/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace mydist::shm {
namespace {

TEST(StreamCopy, CopiesExactlyTheBytes) {
  constexpr size_t kMargin = 64;
  for (const size_t bytes :
       {0, 1, 63, 1535, 1536, 1537, 1600, 4096, 16383, 16384, 16449, 32768, 70001}) {
    for (const size_t shift : {0, 1, 15, 16, 63}) {
      std::vector<uint8_t> source(bytes + shift);
      // No page is like another.
      for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 31 + i / 253);
      std::vector<uint8_t> output(bytes + 2 * kMargin + shift, 0xEE);
      StreamCopy(output.data() + kMargin + shift, source.data() + shift / 2,
                 static_cast<int64_t>(bytes));
      for (size_t i = 0; i < output.size(); ++i) {
        const bool is_copied = i >= kMargin + shift && i < kMargin + shift + bytes;
        const uint8_t expected = is_copied ? source[i - kMargin - shift + shift / 2] : 0xEE;
        ASSERT_EQ(output[i], expected) << bytes << " bytes, shifted " << shift << ", at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace mydist::shm
