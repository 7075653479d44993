// GradientReducer: enqueues gradients, a bucket at a time, while backward goes on, and collects the
// results before the optimizer steps. Owned by the Python DistributedOptimizer; every method is
// called with the GIL held, which is what guards the fields; waiting gives it up.
// Per parameter, one step: idle → (hook, backward_passes_per_step times) → held → (its bucket is
// due) → enqueued → synchronized; "in flight" is held or enqueued. Parameters the hook did not see
// are enqueued by Synchronize with what gradient they have, or zeros: ranks may use different ones.
// A parameter that does not require a gradient is left out (unless it is in a group, which must be
// complete): which ones are frozen must agree over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/handle_table.h"
#include "engine/submission.h"
#include "planner/bucket_plan.h"
#include "torch/gradients/gradient_slots.h"
#include "torch/in_flight.h"
#include "torch/reduction_check.h"
#include "world/process_set.h"

namespace mydist {

// GradientsInFlight: what all gradient reducers of the process have enqueued and not finished.
// Two reducers must not reduce the same memory at once, nor use one name for two gradients; both
// happen with two optimizers over one model. Guarded by the GIL; never destroyed.
class GradientsInFlight {
 public:
  static GradientsInFlight& Instance();

  // kInvalidArgument when the gradient of `parameter`, or another one of this name, is in flight.
  Status Check(const at::Tensor& parameter, const std::string& name,
               ProcessSetId process_set) const;
  void Add(const at::Tensor& parameter, const std::string& name, ProcessSetId process_set);
  void Remove(const at::Tensor& parameter);

 private:
  using Key = std::pair<ProcessSetId, std::string>;
  GradientsInFlight() = default;

  std::unordered_map<const at::TensorImpl*, Key> parameters_;
  std::set<Key> names_;
};

// "gradient of 'layer.weight'"
std::string GradientOf(const std::string& name);

// SparseGradient: what travels for a sparse gradient, and what becomes of it. The ranks gather the
// rows each of them touched: positions and values are two allgathers of one group. Owned by the
// GradientReducer, which holds the GIL; the engine writes `late` in between.
// Duplicate positions are added up before the rows leave and again when all have arrived.
class SparseGradient {
 public:
  // The rows of a COO tensor; its values travel as `wire`.
  SparseGradient(const at::Tensor& gradient, at::ScalarType wire);
  // No row at all, of a gradient of this parameter with this many sparse dimensions.
  SparseGradient(const at::Tensor& parameter, int64_t sparse_dims, at::ScalarType wire);

  // The two requests, of a gradient of this name.
  std::vector<Submission> Submissions(const std::string& name, ProcessSetId process_set) const;
  // Everything the engine was given a pointer to.
  std::vector<at::Tensor> memory() const { return {positions_, values_}; }
  // The values as they travel.
  const at::Tensor& values() const { return values_; }

  // What the gathered rows will be in.
  const std::shared_ptr<LateOutputs>& late() const { return late_; }

  // Once complete: `factor` × the sum over the ranks, coalesced, in `dtype`.
  at::Tensor Sum(at::ScalarType dtype, double factor) const;

 private:
  std::vector<int64_t> shape_;
  at::Tensor positions_;  // [rows, sparse dimensions] int64
  at::Tensor values_;     // [rows, dense dimensions …]
  std::shared_ptr<LateOutputs> late_ = std::make_shared<LateOutputs>(2);
};

struct HookHandle;  // In gradient_reducer.cc, as this header does without Python's.

struct GradientReducerOptions {
  ReductionArguments reduction;
  WireFormat wire_format = WireFormat::kAsIs;
  ProcessSetId process_set = kGlobalProcessSet;
};

class __attribute__((visibility("hidden"))) GradientReducer
    : public std::enable_shared_from_this<GradientReducer> {
 public:
  explicit GradientReducer(GradientReducerOptions options) : options_(options) {}
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Registers the hook on a leaf. The same tensor again is no error and changes nothing (tied
  // weights); another tensor under a known name is. `group`: "" or the name that `group_size`
  // parameters share, which are then reduced together.
  void AddParameter(const at::Tensor& tensor, const std::string& name, const std::string& group,
                    int32_t group_size);

  // The hook: the gradient of parameter `index` has been accumulated. Never waits. ValueError for
  // one backward too many, and when another reducer is reducing the same gradient.
  void OnGradient(size_t index);

  // Enqueues what is missing, waits for all, puts the results into .grad. Blocking; throws the
  // first error after all have been waited for, so that the next step starts clean. ValueError when
  // a gradient was replaced or changed since it was enqueued. After Ctrl-C it may be called again.
  void Synchronize();

  void SetBackwardPassesPerStep(int64_t passes);
  // Off inside no_sync(): gradients accumulate on this rank only and are not counted.
  void SetEnabled(bool enabled) { enabled_ = enabled; }
  // On: a sparse gradient is replaced by its dense form. Off: its rows are gathered; a rank
  // without a gradient then contributes no rows, once it has had a sparse one.
  void SetSparseAsDense(bool sparse_as_dense) { sparse_as_dense_ = sparse_as_dense; }
  // On (the default): gradients lie side by side while they are reduced, and `.grad` stays there.
  void SetBufferViews(bool buffer_views) { buffer_views_ = buffer_views; }
  std::vector<std::string> Pending() const;
  // The names in each bucket; none before the first Synchronize.
  std::vector<std::vector<std::string>> Buckets() const;
  // How they were made: the first ones in the first Synchronize, others for parameters added later.
  struct Layout {
    size_t bucket_count = 0;
    BucketSizes sizes;
    std::string reason;  // Where the sizes come from.
  };
  const std::vector<Layout>& layouts() const { return layouts_; }
  // Of the memory reserved for gradients.
  int64_t slot_bytes() const { return slots_.bytes(); }
  // Of gradients copied to where they are reduced, or back, so far.
  int64_t copied_bytes() const { return copied_bytes_; }
  // Whether a backward, counted or not, has run since the last Synchronize.
  bool touched() const { return touched_; }
  // Forgets how many backward passes have been counted; what is in flight stays in flight.
  void Reset();
  // The step was refused before its Synchronize: what is held for the first layout is no longer in
  // flight, so another reducer may take it. The next Synchronize takes `.grad` as it is then.
  // What has a bucket stays in flight, as part of it may be enqueued.
  void LetGo();
  // Unregisters all hooks and lets go of what is in flight. AddParameter starts anew. A
  // Synchronize that another thread is waiting in ends with an error.
  void Remove();

 private:
  struct InFlightGradient {
    std::optional<Handle> handle;  // Once it is enqueued.
    at::Tensor gradient;           // Undefined: zeros were contributed.
    bool is_fresh = false;         // Made by autograd, and not yet shown to anybody.
    // Of `gradient` when the hook saw it; what the engine writes does not count. Nothing when it
    // shares it.
    std::optional<int64_t> version;
    const void* data = nullptr;  // Its memory then.
    at::Tensor wire;             // What the engine reduces: the gradient itself or a copy.
    at::Tensor sum;              // Of an average of integers, what the engine reduces instead.
    bool is_wide = false;        // The engine casts `wire` to what travels, and back.
    std::optional<SparseGradient> sparse;  // Instead of `wire`.
    StreamHandle stream{};                 // On a GPU: what travels is there behind this one.
  };
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    std::string group;
    size_t group_size = 0;
    int64_t backward_passes = 0;
    int64_t sparse_dims = 0;   // Of the last gradient; 0 when it was dense or there was none.
    bool is_laid_out = false;  // It has a bucket, or will never have one.
    bool is_idle = false;      // No backward came to it in the last step.
    bool had_slot = false;     // It has been given one.
    std::optional<InFlightGradient> in_flight;
    std::shared_ptr<HookHandle> hook;  // Null: without a gradient.
  };
  // What was enqueued under one handle.
  struct Flight {
    Handle handle;
    std::vector<size_t> members;
  };

  // In gradient_wire.cc: what travels for a gradient, and what becomes of it.
  Status MakeWire(Parameter& parameter, InFlightGradient& gradient);
  static StreamHandle StreamOf(const Parameter& parameter);
  void MakeDenseWire(size_t index, InFlightGradient& gradient);
  void MakeZeros(const Parameter& parameter, InFlightGradient& gradient);
  at::Tensor TakeSlot(size_t index, const at::Tensor& shaped, bool may_do_without);
  Status MakeSparse(Parameter& parameter, InFlightGradient& gradient) const;
  Status CheckSparse(const Parameter& parameter) const;
  void Install(Parameter& parameter, const InFlightGradient& done, bool alone);

  // kInvalidArgument unless `.grad` is still as it was when the hook saw it.
  static Status CheckUntouched(const Parameter& parameter, const InFlightGradient& held);

  // In gradient_slots.cc: makes buckets, and slots, for the parameters that have none and are
  // going to need them.
  void LayOut();
  std::vector<size_t> TakeUnplaced();
  void ReserveSlots(std::span<const std::vector<size_t>> buckets);

  Status Hold(Parameter& parameter, bool in_backward);
  // Enqueues those of them that are held, under one handle as far as they are dense.
  Status Enqueue(std::span<const size_t> members, Pace pace);
  Status EnqueueTogether(std::vector<size_t> members, Pace pace);
  Submission DenseSubmission(const Parameter& parameter, const InFlightGradient& gradient) const;
  bool AveragesIntegers(const at::Tensor& wire) const;
  IntegerAverage AverageOf(const at::Tensor& wire) const;
  // What travels for it; `call` keeps the memory.
  void AddSubmissions(const Parameter& parameter, std::vector<Submission>& submissions,
                      InFlightCall& call) const;
  Status HoldMissing(bool alone);
  // All that is held; the first error does not stop the rest.
  Status EnqueueHeld();
  void CheckMayEnqueue() const;
  bool IsExpected(size_t index) const;
  size_t IndexOf(const Parameter& parameter) const {
    return static_cast<size_t>(&parameter - parameters_.data());
  }

  void NextStep();
  void Forget(std::span<const Flight> landed);
  Status FinishFlight(const Flight& flight, const Status& outcome, bool alone);
  Status Finish(Parameter& parameter, const Status& outcome, bool alone);
  void Land(Parameter& parameter);  // It is no longer in flight.
  void RemoveHook(Parameter& parameter) noexcept;
  at::ScalarType WireDtype(at::ScalarType dtype) const;
  // Whether the engine casts such gradients, on a GPU all of a batch in one launch.
  bool IsCastByEngine(const at::Tensor& tensor) const;

  const GradientReducerOptions options_;
  int64_t backward_passes_per_step_ = 1;
  bool enabled_ = true;
  bool touched_ = false;
  bool sparse_as_dense_ = false;
  bool buffer_views_ = true;
  double sparse_factor_ = 1.0;  // What the sum of sparse gradients is multiplied by.
  int64_t copied_bytes_ = 0;
  std::vector<Parameter> parameters_;
  GradientBuckets buckets_;
  GradientSlots slots_;
  std::vector<Layout> layouts_;
  std::vector<Flight> flights_;  // Enqueued and not yet synchronized.
};

}  // namespace mydist
