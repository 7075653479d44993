// Every collective with tensors anywhere: each rank draws for itself whether its tensor lies in the
// heap or in private memory, and writes garbage over it as soon as its call has returned. Nobody
// may read it later, and nobody may write to it. Results are bitwise those over the rings.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "algorithms/shm/random_draws.h"
#include "algorithms/shm/shm_collectives.h"
#include "conformance/collectives_suite.h"
#include "kernels/element.h"

namespace mydist::shm {

class MixedPlacesSuite {
 public:
  MixedPlacesSuite(ShmPort* port, testing::Rank me, uint32_t seed)
      : port_(port),
        me_(me),
        reference_(&port->transport()),
        shared_random_(seed),
        own_random_(seed * 31 + static_cast<uint32_t>(me.rank)) {}

  void Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      count_ = 1 + Draw(shared_random_, round % 3 == 0 ? 30000 : 700);
      dtype_ = OneOf(shared_random_, testing::kAllDataTypes);
      op_ = OneOf(shared_random_, testing::ReduceOpsOf(dtype_));
      root_ = static_cast<int>(Draw(shared_random_, me_.size));
      RunOne(Draw(shared_random_, 9));
      if (::testing::Test::HasFailure()) return;
    }
    CheckGarbage();
  }

 private:
  static constexpr uint8_t kGarbage = 0xAB;
  using Bytes = std::vector<uint8_t>;

  int64_t element_bytes() const { return SizeOf(dtype_); }
  Reduction reduction() const { return Reduction{.dtype = dtype_, .op = op_}.Resolved(me_.size); }
  bool is_root() const { return me_.rank == root_; }

  // A tensor of this round, in the heap or not; garbage as soon as the round is over.
  uint8_t* Place(int64_t bytes) {
    std::shared_ptr<uint8_t> memory;
    if (port_->heap() != nullptr && Draw(own_random_, 2) == 0) {
      const auto allocated = port_->heap()->Allocate(bytes + 1);
      if (allocated.ok()) memory = *allocated;
    }
    if (memory == nullptr) memory.reset(new uint8_t[static_cast<size_t>(bytes) + 1], Delete);
    placed_.push_back({memory, bytes});
    return memory.get();
  }
  static void Delete(const uint8_t* memory) { delete[] memory; }
  uint8_t* Place(const Bytes& content) {
    uint8_t* memory = Place(static_cast<int64_t>(content.size()));
    std::copy(content.begin(), content.end(), memory);
    return memory;
  }
  Bytes Contribution(int64_t count) {
    return testing::ContributionOf(dtype_, me_.rank, count).bytes;
  }

  // What was garbage when the round before ended still is.
  void CheckGarbage() {
    for (const auto& [memory, bytes] : spoilt_) {
      const auto intact = std::count(memory.get(), memory.get() + bytes, kGarbage);
      EXPECT_EQ(intact, bytes) << "written after the call had returned";
    }
  }

  // `result` is what `expected` holds. Then everything is spoilt.
  void Finish(const uint8_t* result, const Bytes& expected, const char* what) {
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result))
        << what << " of " << count_ << " " << DataTypeName(dtype_) << " at rank " << me_.rank;
    for (const auto& [memory, bytes] : placed_) std::fill_n(memory.get(), bytes, kGarbage);
    CheckGarbage();
    spoilt_ = std::exchange(placed_, {});
  }

  void RunOne(int64_t kind) {
    switch (kind) {
      case 0:
        return Allgather();
      case 1:
        return Broadcast();
      case 2:
        return Reducescatter();
      case 3:
        return Reduce();
      case 4:
        return GatherAndScatter();
      case 5:
        return Alltoall();
      case 6:
        return SendAndReceive();
      default:
        return Allreduce();
    }
  }

  void Allreduce() {
    Bytes expected = Contribution(count_);
    uint8_t* data = Place(expected);
    testing::ExpectOk(reference_.Allreduce(expected.data(), count_, reduction()));
    testing::ExpectOk(me_.collectives->Allreduce(data, count_, reduction()));
    Finish(data, expected, "allreduce");
  }

  void Allgather() {
    const auto counts = testing::UnevenCounts(me_.size, count_, 1);
    const Bytes content = Contribution(counts[static_cast<size_t>(me_.rank)]);
    std::vector<int64_t> byte_counts = counts;
    for (int64_t& count : byte_counts) count *= element_bytes();
    Bytes expected(static_cast<size_t>(Total(byte_counts)));
    const uint8_t* input = Place(content);
    uint8_t* output = Place(Total(byte_counts));
    testing::ExpectOk(reference_.Allgather(content.data(), expected.data(), byte_counts));
    testing::ExpectOk(me_.collectives->Allgather(input, output, byte_counts));
    Finish(output, expected, "allgather");
  }

  void Broadcast() {
    Bytes expected = Contribution(count_);
    uint8_t* data = Place(expected);
    const auto bytes = static_cast<int64_t>(expected.size());
    testing::ExpectOk(reference_.Broadcast(expected.data(), bytes, root_));
    testing::ExpectOk(me_.collectives->Broadcast(data, bytes, root_));
    Finish(data, expected, "broadcast");
  }

  void Reducescatter() {
    const auto counts = testing::UnevenCounts(me_.size, count_, 1);
    const int64_t own = counts[static_cast<size_t>(me_.rank)];
    const Bytes content = Contribution(Total(counts));
    Bytes expected(static_cast<size_t>(own * element_bytes()));
    const uint8_t* input = Place(content);
    uint8_t* output = Place(own * element_bytes());
    testing::ExpectOk(
        reference_.Reducescatter(content.data(), expected.data(), counts, reduction()));
    testing::ExpectOk(me_.collectives->Reducescatter(input, output, counts, reduction()));
    EXPECT_TRUE(std::equal(content.begin(), content.end(), input)) << "input was changed";
    Finish(output, expected, "reducescatter");
  }

  void Reduce() {
    const Bytes content = Contribution(count_);
    Bytes expected(is_root() ? content.size() : 0);
    uint8_t* input = Place(content);
    const bool in_place = is_root() && count_ % 2 == 0;
    uint8_t* output = in_place ? input : Place(static_cast<int64_t>(expected.size()));
    testing::ExpectOk(
        reference_.Reduce(content.data(), expected.data(), count_, reduction(), root_));
    testing::ExpectOk(me_.collectives->Reduce(input, output, count_, reduction(), root_));
    if (!in_place) EXPECT_TRUE(std::equal(content.begin(), content.end(), input));
    Finish(output, expected, "reduce");
  }

  void GatherAndScatter() {
    auto byte_counts = testing::UnevenCounts(me_.size, count_, 1);
    for (int64_t& count : byte_counts) count *= element_bytes();
    const int64_t own = byte_counts[static_cast<size_t>(me_.rank)];
    const Bytes content = Contribution(own / element_bytes());
    Bytes gathered(is_root() ? static_cast<size_t>(Total(byte_counts)) : 0);
    const uint8_t* input = Place(content);
    uint8_t* output = Place(static_cast<int64_t>(gathered.size()));
    testing::ExpectOk(reference_.Gather(content.data(), gathered.data(), byte_counts, root_));
    testing::ExpectOk(me_.collectives->Gather(input, output, byte_counts, root_));
    EXPECT_TRUE(std::equal(gathered.begin(), gathered.end(), output)) << "gather";
    uint8_t* own_part = Place(own);
    testing::ExpectOk(me_.collectives->Scatter(output, byte_counts, own_part, root_));
    Finish(own_part, content, "scatter");
  }

  void Alltoall() {
    // Rank r sends r + s + 1 rows to rank s.
    const int64_t row_bytes = 1 + count_ / 8;
    std::vector<int64_t> byte_counts;
    for (int peer = 0; peer < me_.size; ++peer) {
      byte_counts.push_back((me_.rank + peer + 1) * row_bytes);
    }
    dtype_ = DataType::kUint8;
    const Bytes content = Contribution(Total(byte_counts));
    Bytes expected(content.size());
    const uint8_t* input = Place(content);
    uint8_t* output = Place(Total(byte_counts));
    testing::ExpectOk(
        reference_.Alltoall(content.data(), byte_counts, expected.data(), byte_counts));
    testing::ExpectOk(me_.collectives->Alltoall(input, byte_counts, output, byte_counts));
    Finish(output, expected, "alltoall");
  }

  void SendAndReceive() {
    const int receiver = (root_ + 1) % me_.size;
    if (receiver == root_ || (!is_root() && me_.rank != receiver)) return;
    const Bytes content = testing::ContributionOf(dtype_, root_, count_).bytes;
    const auto bytes = static_cast<int64_t>(content.size());
    uint8_t* data = is_root() ? Place(content) : Place(bytes);
    testing::ExpectOk(is_root() ? me_.collectives->Send(data, bytes, receiver)
                                : me_.collectives->Receive(data, bytes, root_));
    Finish(data, content, "send and receive");
  }

  struct Memory {
    std::shared_ptr<uint8_t> memory;
    int64_t bytes;
  };

  ShmPort* const port_;
  const testing::Rank me_;
  RankOrderedCollectives reference_;
  std::mt19937 shared_random_;  // Draws the same on all ranks.
  std::mt19937 own_random_;
  int64_t count_ = 0;
  DataType dtype_ = DataType::kFloat32;
  ReduceOp op_ = ReduceOp::kSum;
  int root_ = 0;
  std::vector<Memory> placed_;
  std::vector<Memory> spoilt_;
};

}  // namespace mydist::shm
