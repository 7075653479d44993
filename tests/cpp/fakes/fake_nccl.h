// FakeNccl: NCCL between the threads of one test process, each of which is a rank. It fills NcclApi
// and fails the test where a caller breaks NCCL's rules: a communicator used before the last call
// is over, another call or other arguments than the peers', an operator or a communicator left
// behind. Slow on purpose: a call is over when CommGetAsyncError has been asked often enough.
// One at a time. Outlives what runs on the streams.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fakes/fake_nccl_call.h"
#include "gpu/nccl_api.h"

namespace mydist::testing {

class FakeNccl {
 public:
  // Puts `work` on `stream`.
  using Launch = std::function<void(nccl::Stream stream, FakeNcclWork work)>;

  // How often kInProgress is the answer before a call is over; 0: it is over when it returns.
  struct Slowness {
    int init_polls = 3;
    int launch_polls = 2;
  };

  FakeNccl(Launch launch, Slowness slowness);
  ~FakeNccl();  // Every communicator must have ended by then.
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const nccl::NcclApi& api() const { return api_; }

  // From now on. What is asked about a communicator of `rank` is answered by `outcome`.
  void FailAsync(int rank, nccl::Outcome outcome, std::string words);
  // How a rank's NCCL is broken, from now on and in all its communicators.
  enum class Fault {
    kInitFails,  // A communicator cannot be made.
    kCallsFail,  // Collectives are refused.
    kCallsHang,  // They do not return before an abort.
  };
  void Break(int rank, Fault fault) MYDIST_EXCLUDES(mutex_);
  // GetUniqueId does not work.
  void FailId() MYDIST_EXCLUDES(mutex_);

  // Since the beginning.
  int groups() MYDIST_EXCLUDES(mutex_);  // That had calls, of all ranks.
  int aborts() MYDIST_EXCLUDES(mutex_);
  // Ranks whose work is on a stream now.
  int running() MYDIST_EXCLUDES(mutex_);
  // Of all ranks, in the order of their submission.
  std::vector<FakeNcclCall> calls() MYDIST_EXCLUDES(mutex_);
  // Blocks until `count` ranks' work is running on a stream: it waits there for the others'.
  void AwaitRunning(int count) MYDIST_EXCLUDES(mutex_);
  // Blocks until `count` communicators are being made.
  void AwaitInitialising(int count) MYDIST_EXCLUDES(mutex_);

 private:
  friend struct FakeNcclFunctions;

  using Comm = nccl::Comm;
  using Outcome = nccl::Outcome;

  // The functions of NcclApi.
  Outcome GetUniqueId(nccl::UniqueId* id) MYDIST_EXCLUDES(mutex_);
  Outcome Initialise(Comm* comm, int size, const nccl::UniqueId& id, int rank,
                     const nccl::CommConfig& config) MYDIST_EXCLUDES(mutex_);
  Outcome Progress(Comm comm) MYDIST_EXCLUDES(mutex_);
  Outcome Finalise(Comm comm) MYDIST_EXCLUDES(mutex_);
  Outcome Destroy(Comm comm) MYDIST_EXCLUDES(mutex_);
  Outcome Abort(Comm comm) MYDIST_EXCLUDES(mutex_);
  Outcome Submit(Comm comm, const FakeNcclCall& call) MYDIST_EXCLUDES(mutex_);
  Outcome EndGroup() MYDIST_EXCLUDES(mutex_);
  Outcome MakeOperator(Comm comm, double scalar, nccl::ElementType type, nccl::ReductionKind* made)
      MYDIST_EXCLUDES(mutex_);
  Outcome DestroyOperator(Comm comm, nccl::ReductionKind made) MYDIST_EXCLUDES(mutex_);

  Outcome Accept(Comm comm, std::vector<FakeNcclCall> calls) MYDIST_EXCLUDES(mutex_);
  void PutOnStream(Comm comm) MYDIST_EXCLUDES(mutex_);
  void Run(Comm comm, std::vector<FakeNcclCall>& calls) MYDIST_EXCLUDES(mutex_);
  Outcome ProgressOf(Comm comm) MYDIST_REQUIRES(mutex_);
  bool Has(Fault fault, int rank) MYDIST_REQUIRES(mutex_);
  bool IsUsable(Comm comm, const char* what) MYDIST_REQUIRES(mutex_);

  const Launch launch_;
  const Slowness slowness_;
  nccl::NcclApi api_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::unique_ptr<FakeClique>> cliques_ MYDIST_GUARDED_BY(mutex_);  // By id.
  // Kept to the end, so that using one after it has ended is seen.
  std::vector<std::unique_ptr<nccl::ncclComm>> comms_ MYDIST_GUARDED_BY(mutex_);
  std::map<int, Outcome> async_failures_ MYDIST_GUARDED_BY(mutex_);  // By rank.
  std::map<int, Fault> faults_ MYDIST_GUARDED_BY(mutex_);            // By rank.
  std::deque<std::string> words_ MYDIST_GUARDED_BY(mutex_);  // All, as somebody may be reading.
  std::vector<FakeNcclCall> calls_ MYDIST_GUARDED_BY(mutex_);
  bool id_fails_ MYDIST_GUARDED_BY(mutex_) = false;
  int ids_ MYDIST_GUARDED_BY(mutex_) = 0;
  int groups_ MYDIST_GUARDED_BY(mutex_) = 0;
  int aborts_ MYDIST_GUARDED_BY(mutex_) = 0;
  int running_ MYDIST_GUARDED_BY(mutex_) = 0;
};

}  // namespace mydist::testing
