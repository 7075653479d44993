// Piece: a part of a table on one server: its parameters, its clocks, and the requests that wait.
// Any thread; one lock, which the answers are given under. Answers must not call the piece.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ps/clocks.h"
#include "ps/payload.h"
#include "ps/rules/update_rule.h"
#include "ps/table_spec.h"

namespace mydist::ps {

// What a request is answered with. The parameters are as they are during the call only, or as long
// as the payload they are in.
struct Answer {
  Status status;
  std::span<const float> parameters;  // Of a request that pulls.
  int64_t updates = 0;                // Applied to them so far.
  int64_t lowest_clock = 0;           // Of the workers that have not finished.
  Duration waited{};                  // For other workers.
  Duration applied{};                 // What the update took that the request was about.
  Payload* owner = nullptr;  // Has the parameters, and may be moved from; null: the piece has them.
};
using OnAnswer = std::function<void(const Answer& answer)>;  // Called once.

class MYDIST_EXPORT Piece {
 public:
  // Sync: so many gradients of a worker are kept for clocks that are not complete before its pushes
  // wait; the one that waits is kept as well.
  static constexpr int64_t kMaxLead = 1;

  // The spec outlives it.
  explicit Piece(const TableSpec& spec);
  virtual ~Piece() = default;
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  // A gradient of the worker; no bytes: none in this clock. Sync: answered when it is received and
  // less than kMaxLead clocks ahead, or, when it `pulls`, when its clock is complete; else when it
  // is applied and no bound is exceeded. kInvalidArgument when the payload does not fit, the table
  // has no rule, or a push of this worker has not been answered for its lead; nothing is applied
  // then.
  void Push(int worker, Payload gradient, bool pulls, OnAnswer reply) MYDIST_EXCLUDES(mutex_);
  // `request`: which rows; nothing of a dense piece.
  void Pull(int worker, Payload request, OnAnswer reply) MYDIST_EXCLUDES(mutex_);
  // The worker pushes no more.
  void Finish(int worker) MYDIST_EXCLUDES(mutex_);
  // It pushes again, from the highest clock on. All workers do it between two pushes of any, so
  // they are level then.
  void Resume(int worker) MYDIST_EXCLUDES(mutex_);
  // The same without its will: what waits for it fails with `why` where its share is needed.
  void Lose(int worker, const Status& why) MYDIST_EXCLUDES(mutex_);
  // The rule with other options, from the next push on; the state stays. kInvalidArgument when it
  // needs another state than the one before.
  Status SetRule(std::unique_ptr<UpdateRule> rule) MYDIST_EXCLUDES(mutex_);

  // What a request of the worker waits for: kTimeout such as "rank 2 at clock 17 waits for rank 0
  // at 13 (ssp(3))", about rank 0; OK: it does not.
  Status WhyWaits(int worker) MYDIST_EXCLUDES(mutex_);

 protected:
  // What a payload holds is checked and read with the lock held.
  virtual Status CheckGradient(const Payload& gradient) const MYDIST_REQUIRES(mutex_) = 0;
  virtual Status CheckRequest(const Payload& request) const MYDIST_REQUIRES(mutex_) = 0;
  // What a worker that has pushed this wants to read; a copy.
  virtual Payload RequestOf(const Payload& gradient) const MYDIST_REQUIRES(mutex_) = 0;
  // Applies the sum of these, in this order, divided by their number. Of a dense piece each of
  // `copies` gets the parameters then; it may be where a gradient lies.
  virtual void Apply(std::span<const Payload* const> gradients,
                     std::span<const std::span<float>> copies, const PushInfo& push)
      MYDIST_REQUIRES(mutex_) = 0;
  // The parameters that a pull, or the answer to a push, is about.
  virtual std::span<const float> Read(int worker, const Payload& request)
      MYDIST_REQUIRES(mutex_) = 0;

  const TableSpec& spec_;
  Mutex mutex_;
  std::unique_ptr<UpdateRule> rule_ MYDIST_GUARDED_BY(mutex_);

 private:
  // A clock that some workers have pushed for. Sync alone.
  struct OpenClock {
    std::vector<std::optional<Payload>> gradients;  // By worker.
    int count = 0;
  };
  struct Waiting {
    int worker;
    int64_t clock;    // That it waits for. Sync: how many must be complete. SSP: its own.
    Payload request;  // What it wants to read.
    OnAnswer reply;
    bool pulls = true;
    TimePoint since{};  // When it came.
    // Whether its gradient is not needed once it has been applied, and has as many bytes as its
    // answer.
    bool may_overwrite = false;
    Payload* written = nullptr;  // The gradient, once its answer is there.
  };

  // Of what a worker has pushed: what the table refuses.
  Status CheckPush(int worker, const Payload& gradient) const MYDIST_REQUIRES(mutex_);
  bool IsReady(const Waiting& waiting) const MYDIST_REQUIRES(mutex_);
  void ReplyOrWait(Waiting waiting) MYDIST_REQUIRES(mutex_);
  void GiveAnswer(const Waiting& waiting) MYDIST_REQUIRES(mutex_);
  void ReplyTo(const OnAnswer& reply, const Status& status) MYDIST_REQUIRES(mutex_);
  // `answered`: with the parameters, where their gradients lie.
  void ApplyTimed(std::span<const Payload* const> gradients, std::span<Payload* const> answered,
                  const PushInfo& push) MYDIST_REQUIRES(mutex_);
  void PushToClock(int worker, Payload gradient, bool pulls, OnAnswer reply)
      MYDIST_REQUIRES(mutex_);
  void PushAlone(int worker, Payload gradient, bool pulls, OnAnswer reply) MYDIST_REQUIRES(mutex_);
  bool IsComplete(const OpenClock& open) const MYDIST_REQUIRES(mutex_);
  void ApplyCompleteClocks() MYDIST_REQUIRES(mutex_);
  // Requests that waited for what has just changed.
  void WakeWaiting() MYDIST_REQUIRES(mutex_);
  std::string WorkerText(int worker) const;

  Clocks clocks_ MYDIST_GUARDED_BY(mutex_);
  std::deque<OpenClock> open_ MYDIST_GUARDED_BY(mutex_);  // The first one: clock applied_.
  int64_t applied_ MYDIST_GUARDED_BY(mutex_) = 0;         // Clocks that are complete.
  int64_t updates_ MYDIST_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> updates_read_ MYDIST_GUARDED_BY(mutex_);  // By worker.
  std::deque<Waiting> waiting_ MYDIST_GUARDED_BY(mutex_);
  int lost_ MYDIST_GUARDED_BY(mutex_) = 0;           // Workers.
  Duration applied_in_ MYDIST_GUARDED_BY(mutex_){};  // The last update.
  Status failure_ MYDIST_GUARDED_BY(mutex_);
};

// Neighbours in a dense table. Payloads are their elements.
class MYDIST_EXPORT DensePiece final : public Piece {
 public:
  DensePiece(const TableSpec& spec, std::span<const float> start);

 protected:
  Status CheckGradient(const Payload& gradient) const override MYDIST_REQUIRES(mutex_);
  Status CheckRequest(const Payload& request) const override MYDIST_REQUIRES(mutex_);
  Payload RequestOf(const Payload&) const override MYDIST_REQUIRES(mutex_) { return {}; }
  void Apply(std::span<const Payload* const> gradients, std::span<const std::span<float>> copies,
             const PushInfo& push) override MYDIST_REQUIRES(mutex_);
  std::span<const float> Read(int worker, const Payload& request) override MYDIST_REQUIRES(mutex_);

 private:
  // Neighbours that are updated together, with their state.
  struct Block {
    size_t begin = 0;
    std::span<float> parameters;
    std::span<float> state;
  };
  std::vector<Block> Blocks() MYDIST_REQUIRES(mutex_);

  std::vector<float> parameters_;
  std::vector<float> state_;  // Of one block after the other.
};

}  // namespace mydist::ps
