// Rooted conformance: the collectives that give one rank what the others do not get, and transfers
// between two ranks. Every rank of the job calls the same Check… functions in the same order.
#pragma once

#include "conformance/collectives_suite.h"

namespace mydist::testing {

// Every rank is the root once. In place: the root's input is its output.
inline void CheckReduce(const Rank& me, DataType dtype, int64_t count) {
  const std::vector<Elements> inputs = ContributionsOf(dtype, me.size, count);
  const Elements& own = inputs[static_cast<size_t>(me.rank)];
  int root = 0;
  for (const ReduceOp op : ReduceOpsOf(dtype, me.reduces)) {
    root = (root + 1) % me.size;
    const Reduction reduction{.dtype = dtype, .op = op};
    Elements everywhere = own;
    ExpectOk(me.collectives->Allreduce(everywhere.data(), count, reduction.Resolved(me.size)));
    for (const bool in_place : {false, true}) {
      Elements input = own;
      Elements output(dtype, count, kPoison);
      const bool same = in_place && me.rank == root;
      ExpectOk(me.collectives->Reduce(input.data(), same ? input.data() : output.data(), count,
                                      reduction.Resolved(me.size), root));
      const Elements& result = same ? input : output;
      const Elements& expected = me.rank == root ? everywhere : Elements(dtype, count, kPoison);
      EXPECT_TRUE(result.bytes == expected.bytes)
          << ReduceOpName(op) << " of " << count << " " << DataTypeName(dtype) << " to rank "
          << root << ", seen by rank " << me.rank;
      if (!same) {
        EXPECT_TRUE(input.bytes == own.bytes) << "input was changed";
      }
    }
  }
}

inline void CheckGather(const Rank& me, const std::vector<int64_t>& byte_counts, int root) {
  std::vector<uint8_t> expected;
  for (int rank = 0; rank < me.size; ++rank) {
    const auto part = PatternOf(rank, root, byte_counts[static_cast<size_t>(rank)]);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const std::vector<uint8_t> input =
      PatternOf(me.rank, root, byte_counts[static_cast<size_t>(me.rank)]);
  std::vector<uint8_t> output(me.rank == root ? expected.size() : 0, kPoison);
  ExpectOk(me.collectives->Gather(input.data(), output.data(), byte_counts, root));
  if (me.rank == root) {
    EXPECT_TRUE(output == expected) << "gather of " << expected.size();
  }
}

// The others know only what they get themselves.
inline void CheckScatter(const Rank& me, std::vector<int64_t> byte_counts, int root) {
  std::vector<uint8_t> input;
  for (int rank = 0; rank < me.size && me.rank == root; ++rank) {
    const auto part = PatternOf(root, rank, byte_counts[static_cast<size_t>(rank)]);
    input.insert(input.end(), part.begin(), part.end());
  }
  const int64_t own_bytes = byte_counts[static_cast<size_t>(me.rank)];
  if (me.rank != root) {
    for (int64_t& bytes : byte_counts) bytes = -1;
    byte_counts[static_cast<size_t>(me.rank)] = own_bytes;
  }
  std::vector<uint8_t> output(static_cast<size_t>(own_bytes), kPoison);
  ExpectOk(me.collectives->Scatter(input.data(), byte_counts, output.data(), root));
  EXPECT_TRUE(output == PatternOf(root, me.rank, own_bytes)) << "scatter giving " << own_bytes;
}

// One pair after the other; ranks that are in no pair do nothing meanwhile.
inline void CheckSendAndReceive(const Rank& me, int64_t bytes) {
  for (int from = 0; from < me.size; ++from) {
    for (int to = 0; to < me.size; ++to) {
      if (from == to) continue;
      const std::vector<uint8_t> expected = PatternOf(from, to, bytes);
      if (me.rank == from) ExpectOk(me.collectives->Send(expected.data(), bytes, to));
      if (me.rank != to) continue;
      std::vector<uint8_t> output(expected.size(), kPoison);
      ExpectOk(me.collectives->Receive(output.data(), bytes, from));
      EXPECT_TRUE(output == expected) << bytes << " bytes from rank " << from << " to " << to;
    }
  }
}

inline void CheckMovingRooted(const Rank& me) {
  for (const int64_t limit : {0, 1, 100, 70001}) {
    for (int root = 0; root < me.size; ++root) {
      const auto seed = static_cast<uint64_t>(root);
      CheckGather(me, UnevenCounts(me.size, limit, seed), root);
      CheckScatter(me, UnevenCounts(me.size, limit, seed + 100), root);
    }
    CheckSendAndReceive(me, limit);
  }
}

inline void CheckReducingRooted(const Rank& me, DataType dtype) {
  for (const int64_t count : {0, 1, 7, 1000, 100003}) CheckReduce(me, dtype, count);
}

}  // namespace mydist::testing
