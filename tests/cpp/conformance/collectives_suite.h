// Collectives conformance: what every Collectives must do, over any transport. Every rank of the
// job calls the same Check… functions in the same order, as a thread or as a process of its own; a
// failure is reported by the rank that sees it. Outputs are poisoned before each call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "algorithms/collectives.h"
#include "conformance/reduction_reference.h"
#include "conformance/status_checks.h"

namespace mydist::testing {

struct Rank {
  int rank = 0;
  int size = 1;
  Collectives* collectives = nullptr;
  // What the collectives reduce, and how well; less only where something else does the reducing.
  bool (*reduces)(ReduceOp, DataType) = HasMeaning;
  Rounding rounding = Rounding::kOnce;
};

inline constexpr uint8_t kPoison = 0xA5;

// Every rank has the same bytes as rank 0.
inline void ExpectSameOnAllRanks(const Rank& me, const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t> of_root = bytes;
  ExpectOk(me.collectives->Broadcast(of_root.data(), static_cast<int64_t>(of_root.size()), 0));
  EXPECT_TRUE(of_root == bytes) << "rank " << me.rank << " has other bytes than rank 0";
}

// Compares our share of `got` with the reference: the ranks together check all of it.
inline void ExpectOurShareReduced(const Rank& me, const Elements& got,
                                  const std::vector<Elements>& inputs, const Reduction& reduction) {
  const int64_t begin = got.count() * me.rank / me.size;
  const int64_t end = got.count() * (me.rank + 1) / me.size;
  ExpectReduced(SliceOf(got, begin, end - begin), inputs, reduction, begin, me.rounding);
}

inline void CheckAllreduce(const Rank& me, DataType dtype, int64_t count) {
  const std::vector<Elements> inputs = ContributionsOf(dtype, me.size, count);
  for (const ReduceOp op : ReduceOpsOf(dtype, me.reduces)) {
    const Reduction reduction{.dtype = dtype, .op = op};
    Elements data = inputs[static_cast<size_t>(me.rank)];
    ExpectOk(me.collectives->Allreduce(data.data(), count, reduction.Resolved(me.size)));
    ExpectSameOnAllRanks(me, data.bytes);
    ExpectOurShareReduced(me, data, inputs, reduction);
  }
}

inline void CheckReducescatter(const Rank& me, DataType dtype, const std::vector<int64_t>& counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const std::vector<Elements> inputs = ContributionsOf(dtype, me.size, total);
  const auto own = counts.begin() + me.rank;
  const int64_t offset = std::accumulate(counts.begin(), own, int64_t{0});
  for (const ReduceOp op : ReduceOpsOf(dtype, me.reduces)) {
    const Reduction reduction{.dtype = dtype, .op = op};
    const Elements input = inputs[static_cast<size_t>(me.rank)];
    Elements output(dtype, *own, kPoison);
    ExpectOk(me.collectives->Reducescatter(input.data(), output.data(), counts,
                                           reduction.Resolved(me.size)));
    ExpectReduced(output, inputs, reduction, offset, me.rounding);
    EXPECT_TRUE(input.bytes == inputs[static_cast<size_t>(me.rank)].bytes) << "input was changed";
    Elements in_place = input;
    void* part = in_place.bytes.data() + offset * SizeOf(dtype);
    ExpectOk(
        me.collectives->Reducescatter(in_place.data(), part, counts, reduction.Resolved(me.size)));
    EXPECT_TRUE(SliceOf(in_place, offset, *own).bytes == output.bytes) << "in place";
  }
}

// Bytes that differ between senders, receivers and positions.
inline std::vector<uint8_t> PatternOf(int from, int to, int64_t bytes) {
  std::vector<uint8_t> pattern(static_cast<size_t>(bytes));
  for (size_t i = 0; i < pattern.size(); i += sizeof(uint64_t)) {
    const uint64_t word =
        Scramble(i ^ static_cast<uint64_t>(from) << 32 ^ static_cast<uint64_t>(to) << 48);
    std::memcpy(&pattern[i], &word, std::min(sizeof(word), pattern.size() - i));
  }
  return pattern;
}

inline void CheckAllgather(const Rank& me, const std::vector<int64_t>& byte_counts, bool in_place) {
  std::vector<uint8_t> expected;
  for (int rank = 0; rank < me.size; ++rank) {
    const auto part = PatternOf(rank, 0, byte_counts[static_cast<size_t>(rank)]);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const auto own = byte_counts.begin() + me.rank;
  const int64_t offset = std::accumulate(byte_counts.begin(), own, int64_t{0});
  std::vector<uint8_t> output(expected.size(), kPoison);
  const std::vector<uint8_t> input = PatternOf(me.rank, 0, *own);
  uint8_t* own_part = output.data() + offset;
  if (in_place) std::copy(input.begin(), input.end(), own_part);
  ExpectOk(
      me.collectives->Allgather(in_place ? own_part : input.data(), output.data(), byte_counts));
  EXPECT_TRUE(output == expected) << "allgather of " << expected.size() << " bytes";
}

inline void CheckBroadcast(const Rank& me, int64_t bytes) {
  for (int root = 0; root < me.size; ++root) {
    const std::vector<uint8_t> expected = PatternOf(root, 0, bytes);
    std::vector<uint8_t> data(expected.size(), kPoison);
    if (me.rank == root) data = expected;
    ExpectOk(me.collectives->Broadcast(data.data(), bytes, root));
    EXPECT_TRUE(data == expected) << "broadcast of " << bytes << " bytes from rank " << root;
  }
}

// bytes[from × size + to] bytes go from one rank to another.
inline void CheckAlltoall(const Rank& me, const std::vector<int64_t>& bytes) {
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> receive_bytes;
  std::vector<uint8_t> input;
  std::vector<uint8_t> expected;
  for (int peer = 0; peer < me.size; ++peer) {
    send_bytes.push_back(bytes[static_cast<size_t>(me.rank * me.size + peer)]);
    receive_bytes.push_back(bytes[static_cast<size_t>(peer * me.size + me.rank)]);
    const auto outgoing = PatternOf(me.rank, peer, send_bytes.back());
    const auto incoming = PatternOf(peer, me.rank, receive_bytes.back());
    input.insert(input.end(), outgoing.begin(), outgoing.end());
    expected.insert(expected.end(), incoming.begin(), incoming.end());
  }
  std::vector<uint8_t> output(expected.size(), kPoison);
  ExpectOk(me.collectives->Alltoall(input.data(), send_bytes, output.data(), receive_bytes));
  EXPECT_TRUE(output == expected) << "alltoall giving " << expected.size() << " bytes";
}

// `count` numbers up to `limit`, about a third of them 0; the same on every rank.
inline std::vector<int64_t> UnevenCounts(int count, int64_t limit, uint64_t seed) {
  std::vector<int64_t> counts;
  for (int i = 0; i < count; ++i) {
    const uint64_t number = Scramble(seed * 1000 + static_cast<uint64_t>(i));
    counts.push_back(
        number % 3 == 0 ? 0
                        : static_cast<int64_t>((number >> 8) % (static_cast<uint64_t>(limit) + 1)));
  }
  return counts;
}

// Everything that only moves bytes.
inline void CheckMovingCollectives(const Rank& me) {
  for (const int64_t bytes : {0, 1, 7, 1000, 100003, (3 << 20) + 1}) CheckBroadcast(me, bytes);
  for (const int64_t limit : {0, 1, 100, 70001}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      CheckAllgather(me, UnevenCounts(me.size, limit, seed), seed % 2 == 0);
      CheckAlltoall(me, UnevenCounts(me.size * me.size, limit, seed));
    }
    CheckAllgather(me, std::vector<int64_t>(static_cast<size_t>(me.size), limit), false);
  }
  for (int i = 0; i < 10; ++i) ExpectOk(me.collectives->Barrier());
}

// `arrived` is one for all ranks.
inline void CheckBarrier(const Rank& me, std::atomic<int>& arrived) {
  for (int round = 1; round <= 50; ++round) {
    ++arrived;
    ExpectOk(me.collectives->Barrier());
    EXPECT_GE(arrived.load(), round * me.size);
  }
}

inline void CheckReducingCollectives(const Rank& me, DataType dtype) {
  for (const int64_t count : {0, 1, 7, 1000, 100003}) CheckAllreduce(me, dtype, count);
  for (const int64_t limit : {0, 1, 7, 1000, 20011}) {
    CheckReducescatter(me, dtype, UnevenCounts(me.size, limit, 7));
    CheckReducescatter(me, dtype, std::vector<int64_t>(static_cast<size_t>(me.size), limit));
  }
}

}  // namespace mydist::testing
