#include "lanes/lane_call.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace mydist {
namespace {

// Each differs from the first in one field.
std::vector<LaneCall> DifferentCalls() {
  const LaneCall first{OpKind::kAllreduce, DataType::kFloat32, 4, ReduceOp::kSum};
  std::vector<LaneCall> calls(11, first);
  calls[1].op = OpKind::kReducescatter;
  calls[2].dtype = DataType::kFloat64;
  calls[3].count = 5;
  calls[4].reduce_op = ReduceOp::kMax;
  calls[5].root = 0;
  calls[6].factor = 0.5;
  calls[7].pieces = 2;
  calls[8].bitwise = Bitwise::kAnd;
  calls[9].parts = "1, 3";
  calls[10].layout = "sparse [2, 2] with 1 sparse dimension";
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
  EXPECT_EQ(DifferentCalls()[9].ToText(), "allreduce of 4 float32 in parts of 1, 3, Sum");
  EXPECT_EQ(DifferentCalls()[10].ToText(),
            "allreduce of 4 float32, sparse [2, 2] with 1 sparse dimension, Sum");
}

TEST(LaneCall, TheBalanceOfAllMembersIsZeroWhenSizesAgree) {
  const auto sum = [](int64_t to_second, int64_t from_first) {
    LaneCall first{OpKind::kAlltoall};
    LaneCall second{OpKind::kAlltoall};
    first.sends = {8, to_second};
    first.receives = {8, 24};
    second.sends = {24, 0};
    second.receives = {from_first, 0};
    return first.Balance(0) + second.Balance(1);
  };
  EXPECT_EQ(sum(16, 16), 0u);
  EXPECT_EQ(sum(0, 0), 0u);
  EXPECT_NE(sum(16, 24), 0u);
  EXPECT_NE(sum(24, 16), 0u);
  LaneCall call{OpKind::kAlltoall};
  call.sends = std::vector<int64_t>(9, 4);
  call.receives = {8, 16};
  EXPECT_EQ(call.ToText(),
            "alltoall of uint8, sends 4, 4, 4, 4, 4, 4, 4, 4, ... bytes, receives 8, 16 bytes");
}

}  // namespace
}  // namespace mydist
