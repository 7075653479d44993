// FakeNcclCall: what one rank has called, and the communicators of FakeNccl that bring the calls of
// all ranks together. Under FakeNccl's lock; whoever comes last does the work for everybody, while
// the others' streams wait.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fakes/fake_nccl_fold.h"
#include "gpu/nccl_api.h"

namespace mydist::testing {

struct FakeNcclCall {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // As the function of NCCL counts.
  FakeReduction reduction;
  int peer = 0;  // Or the root.
  nccl::Stream stream = nullptr;

  bool IsTransfer() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  // Every rank has to say the same.
  bool AgreesWith(const FakeNcclCall& other) const;
  // Of `rank` in a set of `size`; 0 where the rank reads or writes nothing.
  size_t InputBytes(int rank, int size) const;
  size_t OutputBytes(int rank, int size) const;
  // Whether the memory lies as NCCL allows: apart, or in place where it says so.
  bool IsLegal(int rank, int size) const;

  // While it waits on a stream.
  int64_t position = 0;  // Of a collective among those of its communicator.
  bool is_over = false;
};

struct FakeNcclWork {
  struct Range {
    const void* begin = nullptr;
    size_t bytes = 0;
    bool writes = false;
  };
  std::vector<Range> ranges;
  std::function<void()> run;  // Returns when all ranks have done their part, or after an abort.
};

// The communicators of all ranks of one id.
class FakeClique {
 public:
  explicit FakeClique(int size) : size_(size) {}

  int size() const { return size_; }
  // False when the rank is there already.
  bool Join(int rank) { return ranks_.insert(rank).second; }
  bool IsComplete() const { return static_cast<int>(ranks_.size()) == size_; }

  void Leave(int rank) { left_.insert(rank); }
  bool AllLeave() const { return static_cast<int>(left_.size()) == size_; }

  // `call` stays valid until it is over or withdrawn. True: something is over now.
  bool Post(int rank, FakeNcclCall* call);
  void Withdraw(int rank, FakeNcclCall* call);

 private:
  bool PostCollective(int rank, FakeNcclCall* call);
  bool PostTransfer(int rank, FakeNcclCall* call);
  void Perform(const std::map<int, FakeNcclCall*>& calls) const;

  const int size_;
  std::set<int> ranks_;
  std::set<int> left_;
  std::map<int64_t, std::map<int, FakeNcclCall*>> collectives_;  // By position, then rank.
  // By sender and receiver; only one of the two waits.
  std::map<std::pair<int, int>, std::deque<FakeNcclCall*>> transfers_;
};

}  // namespace mydist::testing

namespace mydist::nccl {

struct ncclComm {
  enum class State { kInitialising, kReady, kFinalising, kFinalised, kEnded };

  testing::FakeClique* clique = nullptr;
  int rank = 0;
  State state = State::kInitialising;
  int polls_left = 0;
  bool is_aborted = false;
  int running = 0;                               // Pieces of work on streams.
  std::vector<testing::FakeNcclCall> launching;  // Not yet on a stream.
  int64_t collectives = 0;
  std::map<int, testing::FakeReduction> operators;
  int next_operator = 5;
};

}  // namespace mydist::nccl
