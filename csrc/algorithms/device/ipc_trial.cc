#include "algorithms/device/ipc_trial.h"

#include "algorithms/device/verdict.h"

namespace mydist {
namespace {

// Not whole units: the last one is cut.
constexpr int64_t kCount = kIpcTrialBytes / static_cast<int64_t>(sizeof(int32_t)) - 1;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(int32_t));

// Never 0, other numbers on every rank, at every place and in every sum; those of all ranks add up
// to what is still exact.
int32_t NumberOf(int rank, int64_t index, int sum) {
  return static_cast<int32_t>((index * 7919 + rank * 104729 + sum * 15485863) % 10007) + 1;
}

class Trial {
 public:
  explicit Trial(const IpcTrial& trial) : trial_(trial) {}

  Result<std::string> Run() {
    MYDIST_ASSIGN_OR_RETURN(std::string unprepared, Judge(Settle()));
    if (!unprepared.empty()) return unprepared;
    deadline_ = Now() + trial_.patience;
    Status outcome = Sum(0, false);
    // Two ranks have one shot only; the other half of the board is then used by that.
    if (outcome.ok()) outcome = Sum(1, trial_.link->size() > 2);
    return Judge(outcome.ok() ? wrong_ : outcome);
  }

 private:
  Result<std::string> Judge(const Status& outcome) {
    if (!news_.ok()) return news_;
    return FirstFailure(outcome, *trial_.exchange, trial_.link->size());
  }

  // What lies in front is no fault of the link's. It may wait for something of the program's, and
  // that for this, so it is not waited for without end either.
  Status Settle() {
    MYDIST_RETURN_IF_ERROR(trial_.prepared);
    return Await("its GPU was busy for too long before");
  }

  Status Await(const char* overdue) {
    Device& device = *trial_.seat.device;
    MYDIST_ASSIGN_OR_RETURN(const EventPointer end, device.Record(trial_.seat.stream));
    return WaitWatched(device, *end, [&] {
      if (trial_.seat.watch) news_ = trial_.seat.watch();
      if (!news_.ok() || Now() < deadline_) return news_;
      return Status::Timeout(overdue);
    });
  }

  // Wrong numbers are no failure: the others count on this rank for the next sum.
  Status Sum(int sum, bool in_two_shots) {
    const StreamSeat& seat = trial_.seat;
    auto* const numbers = reinterpret_cast<int32_t*>(trial_.pinned);
    for (int64_t i = 0; i < kCount; ++i) numbers[i] = NumberOf(trial_.link->rank(), i, sum);
    MYDIST_RETURN_IF_ERROR(seat.device->Copy(trial_.memory, trial_.pinned, kBytes, seat.stream));
    MYDIST_RETURN_IF_ERROR(trial_.link->Allreduce(
        trial_.memory, kCount, {.dtype = DataType::kInt32, .op = ReduceOp::kSum}, in_two_shots));
    MYDIST_RETURN_IF_ERROR(seat.device->Copy(trial_.pinned, trial_.memory, kBytes, seat.stream));
    MYDIST_RETURN_IF_ERROR(
        Await("nothing of what another rank writes to its GPU arrived there in time, though the "
              "driver says that they reach each other"));
    if (wrong_.ok()) wrong_ = Compare(numbers, sum);
    return Status::Ok();
  }

  Status Compare(const int32_t* numbers, int sum) const {
    for (int64_t i = 0; i < kCount; ++i) {
      int32_t expected = 0;
      for (int rank = 0; rank < trial_.link->size(); ++rank) expected += NumberOf(rank, i, sum);
      if (numbers[i] == expected) continue;
      return Status::Internal("it adds up to other numbers than are on the GPUs: element " +
                              std::to_string(i) + " is " + std::to_string(numbers[i]) +
                              ", expected " + std::to_string(expected));
    }
    return Status::Ok();
  }

  const IpcTrial& trial_;
  TimePoint deadline_ = Now() + trial_.patience;
  Status wrong_;  // Of the first sum that was.
  Status news_;   // What the watch has said.
};

}  // namespace

Result<std::string> TryIpcLink(const IpcTrial& trial) { return Trial(trial).Run(); }

}  // namespace mydist
