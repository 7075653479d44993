// Buffers: which memory is taken again.
#include "ps/buffer.h"

#include <gtest/gtest.h>

namespace mydist::ps {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

TEST(Buffers, ALargeOneIsTakenAgainWhereItFits) {
  Buffer first = TakeBuffer(kPiece);
  const uint8_t* const memory = first.get();
  first.reset();
  const Buffer small = TakeBuffer(kPiece / 2);
  EXPECT_NE(small.get(), memory) << "twice as large";
  Buffer second = TakeBuffer(kPiece - 4);
  EXPECT_EQ(second.get(), memory);
  second.reset();
  EXPECT_EQ(TakeBuffer(kPiece).get(), memory) << "it has kept its size";
}

}  // namespace
}  // namespace mydist::ps
