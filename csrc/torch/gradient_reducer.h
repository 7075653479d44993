// GradientReducer: enqueues each gradient the moment backward has finished it, and collects the
// results before the optimizer steps. Owned by the Python DistributedOptimizer; every method is
// called with the GIL held, which is what guards the fields; waiting gives it up.
// Per parameter, one step: idle → (hook, backward_passes_per_step times) → in flight →
// synchronized. Parameters the hook did not see are enqueued by Synchronize with what gradient they
// have, or zeros, so that ranks may use different parameters. A parameter that does not require a
// gradient is left out (unless it is in a group, which must be complete): which ones are frozen
// must agree over ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/handle_table.h"
#include "torch/reduction_check.h"
#include "torch/sparse_gradient.h"
#include "world/process_set.h"

namespace mydist {

// How gradients travel; the numbers are part of the Python contract.
enum class WireFormat : int { kAsIs = 0, kFloat16 = 1, kBfloat16 = 2 };

struct GradientReducerOptions {
  ReductionArguments reduction;
  WireFormat wire_format = WireFormat::kAsIs;
  int64_t backward_passes_per_step = 1;
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
  std::vector<std::string> Pending() const;
  // Whether a backward, counted or not, has run since the last Synchronize.
  bool touched() const { return touched_; }
  // Forgets how many backward passes have been counted; what is in flight stays in flight.
  void Reset();
  // Unregisters all hooks and lets go of what is in flight. AddParameter starts anew. A
  // Synchronize that another thread is waiting in ends with an error.
  void Remove();

 private:
  struct InFlightGradient {
    Handle handle;
    at::Tensor gradient;  // Undefined: zeros were contributed.
    // Of `gradient` when enqueued; what the engine writes does not count. Nothing when it shares
    // it.
    std::optional<int64_t> version;
    const void* data = nullptr;  // Its memory then.
    at::Tensor wire;  // What the engine reduces: the gradient itself or a dense or cast copy.
    std::optional<SparseGradient> sparse;  // Instead of `wire`.
  };
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    std::string group;
    int32_t group_size = 0;
    int64_t backward_passes = 0;
    int64_t sparse_dims = 0;  // Of the last gradient; 0 when it was dense or there was none.
    std::optional<InFlightGradient> in_flight;
    pybind11::object hook_handle;
  };

  Status Enqueue(Parameter& parameter);
  Status MakeWire(Parameter& parameter, InFlightGradient& gradient) const;
  Status MakeZeros(const Parameter& parameter, InFlightGradient& gradient) const;
  Status MakeSparse(Parameter& parameter, InFlightGradient& gradient) const;
  Status CheckSparse(const Parameter& parameter) const;
  Submission DenseSubmission(const Parameter& parameter, const at::Tensor& wire) const;
  Status Submit(const Parameter& parameter, InFlightGradient& gradient) const;
  // Enqueues what the hooks have not; the first error does not stop the rest.
  Status EnqueueMissing(bool alone);
  // What Synchronize waits for; a gradient is found again by both.
  struct Flight {
    size_t index;
    Handle handle;
  };
  std::vector<Flight> Flights();
  Status FinishFlight(const Flight& flight, const Status& outcome, bool alone);
  Status Finish(Parameter& parameter, const Status& outcome, bool alone);
  void Land(Parameter& parameter);  // It is no longer in flight.
  void Install(Parameter& parameter, const InFlightGradient& done, bool alone) const;
  void RemoveHook(Parameter& parameter) noexcept;
  at::ScalarType WireDtype(at::ScalarType dtype) const;

  const GradientReducerOptions options_;
  int64_t backward_passes_per_step_ = options_.backward_passes_per_step;
  bool enabled_ = true;
  bool touched_ = false;
  bool sparse_as_dense_ = false;
  double sparse_factor_ = 1.0;  // What the sum of sparse gradients is multiplied by.
  std::vector<Parameter> parameters_;
};

}  // namespace mydist
