#include "lanes/lane_call.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace mydist {
namespace {

// Each differs from the first in one field.
std::vector<LaneCall> DifferentCalls() {
  const LaneCall first{OpKind::kAllreduce, DataType::kFloat32, 4, ReduceOp::kSum};
  std::vector<LaneCall> calls(9, first);
  calls[1].op = OpKind::kReducescatter;
  calls[2].dtype = DataType::kFloat64;
  calls[3].count = 5;
  calls[4].reduce_op = ReduceOp::kMax;
  calls[5].root = 0;
  calls[6].factor = 0.5;
  calls[7].pieces = 2;
  calls[8].bitwise = Bitwise::kAnd;
  return calls;
}

TEST(LaneCall, EqualCallsHaveOneFingerprintAndOthersOthers) {
  std::set<uint64_t> seen;
  for (const LaneCall& call : DifferentCalls()) {
    EXPECT_EQ(call.Fingerprint(), LaneCall(call).Fingerprint());
    EXPECT_TRUE(seen.insert(call.Fingerprint()).second) << call.ToText();
  }
}

TEST(LaneCall, TheTextOfDifferentCallsDiffers) {
  std::set<std::string> texts;
  for (const LaneCall& call : DifferentCalls()) texts.insert(call.ToText());
  EXPECT_EQ(texts.size(), DifferentCalls().size());
  EXPECT_EQ(DifferentCalls()[0].ToText(), "allreduce of 4 float32, Sum");
  EXPECT_EQ(DifferentCalls()[8].ToText(), "allreduce of 4 float32, bitwise and");
  EXPECT_EQ((LaneCall{OpKind::kBroadcast, DataType::kUint8, 16, ReduceOp::kSum, 2}).ToText(),
            "broadcast of 16 uint8, root 2");
  EXPECT_EQ(LaneCall{}.ToText(), "barrier");
}

}  // namespace
}  // namespace mydist
