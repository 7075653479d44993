// Every collective with buffers that their owner rewrites whenever the contract lets it: between
// calls, as soon as its own call has returned and the peers are still inside, and while it is late
// and they have entered already. The same few buffers serve all calls, so whoever reads or writes
// one too late or too early meets other bytes. Expected results are computed from the seed: between
// the calls nothing makes ranks wait for each other. Numbers are small integers, exact in any type.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "algorithms/shm/random_draws.h"
#include "algorithms/shm/shm_collectives.h"
#include "conformance/collectives_suite.h"
#include "conformance/status_checks.h"
#include "kernels/element.h"

namespace mydist::shm {

class RewritesSuite {
 public:
  RewritesSuite(ShmPort* port, int rank, int size, uint32_t seed)
      : port_(port),
        own_(rank),
        all_(static_cast<size_t>(size)),
        shared_random_(seed),
        own_random_(seed * 31 + 7u + static_cast<uint32_t>(rank)) {
    std::iota(all_.begin(), all_.end(), 0);
    for (int i = 0; i < 6; ++i) {
      std::shared_ptr<uint8_t> memory(new uint8_t[kBufferBytes], std::default_delete<uint8_t[]>());
      if (i % 2 == 0) {
        const auto allocated = port->heap()->Allocate(kBufferBytes);
        if (allocated.ok()) memory = *allocated;  // A full heap leaves private memory.
      }
      buffers_.push_back({std::move(memory)});
      Rewrite(buffers_.back());
    }
  }

  void Run(int rounds) {
    for (round_ = 0; round_ < rounds; ++round_) {
      count_ = 1 + Draw(shared_random_, round_ % 3 == 0 ? kMostElements : 700);
      dtype_ = DrawType(shared_random_);
      RunAmong(DrawMembers());
      RewriteSome();
      if (::testing::Test::HasFailure()) return;
    }
    for (const Buffer& buffer : buffers_) ExpectUntouched(buffer, 0);
  }

 private:
  using Bytes = std::vector<uint8_t>;
  static constexpr ShmLimits kNothingIsSmall{
      .message_bytes = 0, .slot_bytes = 0, .one_shot_bytes = 0};
  static constexpr int64_t kMostElements = 9000;
  static constexpr int64_t kBufferBytes = 8 * (kMostElements + 8);

  struct Buffer {
    std::shared_ptr<uint8_t> memory;
    uint8_t fill = 0;  // What all of it holds between calls.
  };

  // What one rank puts in and gets. In place, both lie in one buffer.
  struct Call {
    const char* name;
    Bytes input;
    Bytes expected;
    std::function<Status(uint8_t* input, uint8_t* output)> run;
    bool in_place = false;
    int64_t input_at = 0;  // In place only: where in the buffer.
    int64_t expected_at = 0;
    bool spoils_input = false;  // In place: what is not output may hold anything.
  };

  bool Toss() { return Draw(own_random_, 2) == 0; }
  int64_t element_bytes() const { return SizeOf(dtype_); }
  bool is_root() const { return rank_ == root_; }

  // 0 to 7, so that the sum of eight ranks fits into any type.
  int64_t Number(int rank, int64_t index) const {
    const auto key = static_cast<uint64_t>((round_ * 64 + rank) * 100000 + index);
    return static_cast<int64_t>(testing::Scramble(key) >> 61);
  }

  Bytes Encode(int64_t count, const std::function<int64_t(int64_t)>& number) const {
    testing::Elements elements(dtype_, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = number(i);
      const auto real = static_cast<float>(value);
      if (dtype_ == DataType::kFloat32) testing::Put(elements, i, real);
      if (dtype_ == DataType::kBfloat16) testing::Put(elements, i, FloatToBfloat16(real));
      if (dtype_ == DataType::kInt64) testing::Put(elements, i, value);
      if (dtype_ == DataType::kUint8) testing::Put(elements, i, static_cast<uint8_t>(value));
    }
    return elements.bytes;
  }
  Bytes Of(int rank, int64_t count, int64_t from = 0) const {
    return Encode(count, [&](int64_t i) { return Number(rank, from + i); });
  }
  // What all ranks' numbers give.
  Bytes Reduced(ReduceOp op, int64_t count, int64_t from = 0) const {
    return Encode(count, [&](int64_t i) {
      int64_t folded = Number(0, from + i);
      for (int rank = 1; rank < size_; ++rank) {
        folded = testing::CombineIntegers(op, folded, Number(rank, from + i));
      }
      return folded;
    });
  }
  Reduction DrawReduction() {
    constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kMin};
    return {.dtype = dtype_, .op = kOps[static_cast<size_t>(Draw(call_random_, kOps.size()))]};
  }
  // Of `size_` ranks together at most count_; some have nothing.
  std::vector<int64_t> DrawCounts() {
    const auto seed = static_cast<uint64_t>(Draw(call_random_, 1000));
    return testing::UnevenCounts(size_, count_ / size_, seed);
  }
  std::vector<int64_t> InBytes(std::vector<int64_t> counts) const {
    for (int64_t& count : counts) count *= element_bytes();
    return counts;
  }

  void Rewrite(Buffer& buffer) {
    buffer.fill = static_cast<uint8_t>(own_random_());
    std::fill_n(buffer.memory.get(), kBufferBytes, buffer.fill);
  }
  void RewriteSome() {
    for (Buffer& buffer : buffers_) {
      if (Draw(own_random_, 3) != 0) continue;
      ExpectUntouched(buffer, 0);
      Rewrite(buffer);
    }
  }
  // Nobody has written there since Rewrite.
  static void ExpectUntouched(const Buffer& buffer, int64_t begin) {
    const uint8_t* memory = buffer.memory.get();
    const auto intact = std::count(memory + begin, memory + kBufferBytes, buffer.fill);
    EXPECT_EQ(intact, kBufferBytes - begin) << "somebody wrote into a buffer that is not his";
  }

  // The others may be inside already, and know from earlier calls where these buffers lie.
  void BeLate(Buffer& input, Buffer& output) {
    for (int64_t left = Toss() ? 0 : Draw(own_random_, 12); left > 0; --left) {
      Rewrite(Toss() ? input : output);
    }
  }

  void Execute(const Call& call) {
    Buffer& first = buffers_[static_cast<size_t>(Draw(own_random_, 3))];
    Buffer& second =
        call.in_place ? first : buffers_[static_cast<size_t>(3 + Draw(own_random_, 3))];
    ExpectUntouched(first, 0);
    ExpectUntouched(second, 0);
    BeLate(first, second);
    uint8_t* input = first.memory.get() + call.input_at;
    uint8_t* output = second.memory.get() + call.expected_at;
    std::copy(call.input.begin(), call.input.end(), input);
    const Status status = call.run(input, output);
    Bytes kept(output, output + call.expected.size());
    const auto size_of = [](const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); };
    const int64_t input_end = call.input_at + size_of(call.input);
    const int64_t output_end = call.expected_at + size_of(call.expected);
    const bool is_changed =
        !call.in_place && !std::equal(call.input.begin(), call.input.end(), input);
    if (Toss()) {  // Else the others have left before we are done with looking.
      Rewrite(first);
      Rewrite(second);
    } else {
      ExpectUntouched(first, call.in_place ? std::max(input_end, output_end) : input_end);
      if (!call.in_place) ExpectUntouched(second, output_end);
    }
    Rewrite(first);
    Rewrite(second);
    ExpectOk(status);
    EXPECT_FALSE(is_changed) << call.name << " changed its input";
    EXPECT_TRUE(kept == call.expected)
        << call.name << " of " << count_ << " " << DataTypeName(dtype_) << " at rank " << rank_
        << " of " << size_ << ", round " << round_;
  }

  // Everybody, or any who are at least one.
  std::vector<int> DrawMembers() {
    if (Draw(shared_random_, 2) == 0) return all_;
    std::vector<int> members;
    const int64_t one = Draw(shared_random_, static_cast<int64_t>(all_.size()));
    const int64_t others = Draw(shared_random_, int64_t{1} << all_.size());
    for (const int rank : all_) {
      if (rank == one || (others >> rank) % 2 == 1) members.push_back(rank);
    }
    return members;
  }

  // Those who are no members go on with the next round.
  void RunAmong(const std::vector<int>& members) {
    size_ = static_cast<int>(members.size());
    root_ = static_cast<int>(Draw(shared_random_, size_));
    const bool nothing_is_small = Draw(shared_random_, 2) == 0;
    const uint32_t seed = shared_random_();
    const auto own = std::find(members.begin(), members.end(), own_);
    if (own == members.end()) return;
    rank_ = static_cast<int>(own - members.begin());
    ShmCollectives collectives(port_, members, nothing_is_small ? kNothingIsSmall : ShmLimits());
    collectives_ = &collectives;
    call_random_.seed(seed);
    RunOne(Draw(call_random_, 12));
  }

  void RunOne(int64_t kind) {
    using Self = RewritesSuite;
    constexpr void (Self::*kCalls[])() = {
        &Self::Allgather, &Self::Broadcast, &Self::Reducescatter, &Self::Reduce,
        &Self::Gather,    &Self::Scatter,   &Self::Alltoall,      &Self::SendAndReceive,
        &Self::Adasum,    &Self::Barrier,   &Self::Allreduce,     &Self::Allreduce};
    (this->*kCalls[kind])();
  }

  void Barrier() { ExpectOk(collectives_->Barrier()); }

  void Allreduce() {
    const Reduction reduction = DrawReduction();
    Execute({.name = "allreduce",
             .input = Of(rank_, count_),
             .expected = Reduced(reduction.op, count_),
             .run = [&](uint8_t* data,
                        uint8_t*) { return collectives_->Allreduce(data, count_, reduction); },
             .in_place = true});
  }

  // Of equal tensors: their average, which is the tensor.
  void Adasum() {
    dtype_ = DataType::kFloat32;
    Execute({.name = "adasum",
             .input = Of(0, count_),
             .expected = Of(0, count_),
             .run =
                 [&](uint8_t* data, uint8_t*) {
                   const Reduction reduction{.dtype = dtype_, .op = ReduceOp::kAdasum};
                   return collectives_->AdasumAllreduce(data, {&count_, 1}, reduction);
                 },
             .in_place = true});
  }

  Bytes Gathered(const std::vector<int64_t>& counts) const {
    Bytes all;
    for (int rank = 0; rank < size_; ++rank) {
      const Bytes part = Of(rank, counts[static_cast<size_t>(rank)]);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  void Allgather() {
    const std::vector<int64_t> counts = DrawCounts();
    const std::vector<int64_t> bytes = InBytes(counts);
    const bool in_place = Toss();
    Execute({.name = "allgather",
             .input = Of(rank_, counts[static_cast<size_t>(rank_)]),
             .expected = Gathered(counts),
             .run = [&](uint8_t* input,
                        uint8_t* output) { return collectives_->Allgather(input, output, bytes); },
             .in_place = in_place,
             .input_at = in_place ? OffsetOf(bytes, rank_) : 0});
  }

  void Gather() {
    const std::vector<int64_t> counts = DrawCounts();
    const std::vector<int64_t> bytes = InBytes(counts);
    Execute({.name = "gather",
             .input = Of(rank_, counts[static_cast<size_t>(rank_)]),
             .expected = is_root() ? Gathered(counts) : Bytes(),
             .run = [&](uint8_t* input, uint8_t* output) {
               return collectives_->Gather(input, output, bytes, root_);
             }});
  }

  void Scatter() {
    const std::vector<int64_t> counts = DrawCounts();
    const std::vector<int64_t> bytes = InBytes(counts);
    Execute({.name = "scatter",
             .input = is_root() ? Of(root_, Total(counts)) : Bytes(),
             .expected = Of(root_, counts[static_cast<size_t>(rank_)], OffsetOf(counts, rank_)),
             .run = [&](uint8_t* input, uint8_t* output) {
               return collectives_->Scatter(input, bytes, output, root_);
             }});
  }

  void Broadcast() {
    Execute({.name = "broadcast",
             .input = is_root() ? Of(root_, count_) : Bytes(),
             .expected = Of(root_, count_),
             .run =
                 [&](uint8_t* data, uint8_t*) {
                   return collectives_->Broadcast(data, count_ * element_bytes(), root_);
                 },
             .in_place = true});
  }

  void Reduce() {
    const Reduction reduction = DrawReduction();
    Execute({.name = "reduce",
             .input = Of(rank_, count_),
             .expected = is_root() ? Reduced(reduction.op, count_) : Bytes(),
             .run =
                 [&](uint8_t* input, uint8_t* output) {
                   return collectives_->Reduce(input, output, count_, reduction, root_);
                 },
             .in_place = is_root() && Toss()});
  }

  void Reducescatter() {
    const Reduction reduction = DrawReduction();
    const std::vector<int64_t> counts = DrawCounts();
    const int64_t offset = OffsetOf(counts, rank_);
    const bool in_place = Toss();
    Execute({.name = "reducescatter",
             .input = Of(rank_, Total(counts)),
             .expected = Reduced(reduction.op, counts[static_cast<size_t>(rank_)], offset),
             .run =
                 [&](uint8_t* input, uint8_t* output) {
                   return collectives_->Reducescatter(input, output, counts, reduction);
                 },
             .in_place = in_place,
             .expected_at = in_place ? offset * element_bytes() : 0});
  }

  // Rank r sends (r + s) % size rows to rank s, its own numbers from s on.
  void Alltoall() {
    const int64_t row = count_ / (size_ * size_);
    std::vector<int64_t> counts;
    Bytes input;
    Bytes expected;
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t count = (rank_ + peer) % size_ * row;
      const Bytes sent = Of(rank_, count, peer);
      const Bytes received = Of(peer, count, rank_);
      input.insert(input.end(), sent.begin(), sent.end());
      expected.insert(expected.end(), received.begin(), received.end());
      counts.push_back(count);
    }
    const std::vector<int64_t> bytes = InBytes(counts);
    Execute({.name = "alltoall",
             .input = std::move(input),
             .expected = std::move(expected),
             .run = [&](uint8_t* in, uint8_t* out) {
               return collectives_->Alltoall(in, bytes, out, bytes);
             }});
  }

  // The others go on with the next round.
  void SendAndReceive() {
    const int receiver = (root_ + 1) % size_;
    if (receiver == root_ || (!is_root() && rank_ != receiver)) return;
    const int64_t bytes = count_ * element_bytes();
    Execute({.name = "send and receive",
             .input = is_root() ? Of(root_, count_) : Bytes(),
             .expected = is_root() ? Bytes() : Of(root_, count_),
             .run = [&](uint8_t* input, uint8_t* output) {
               return is_root() ? collectives_->Send(input, bytes, receiver)
                                : collectives_->Receive(output, bytes, root_);
             }});
  }

  ShmPort* const port_;
  const int own_;
  std::vector<int> all_;
  std::mt19937 shared_random_;  // Draws the same on all ranks.
  std::mt19937 call_random_;    // On all that take part.
  std::mt19937 own_random_;
  std::vector<Buffer> buffers_;
  int64_t round_ = 0;
  // Of the call and who takes part: indices among them.
  ShmCollectives* collectives_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  int root_ = 0;
  int64_t count_ = 0;
  DataType dtype_ = DataType::kFloat32;
};

}  // namespace mydist::shm
