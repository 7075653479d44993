// InFlight: the tensors behind every handle, from enqueue until the caller has waited for it.
// One per process, never destroyed. The engine reads and writes their memory in between and holds
// no tensor itself, so that none is ever released off a Python thread. Called with the GIL held
// (hence never locked during a fork); the waits give it up.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "controller/messages/request.h"
#include "engine/handle_table.h"
#include "engine/submission.h"
#include "torch/gpu_order.h"

namespace mydist {

// IntegerAverage: averages of integers, summed in numbers that no number of ranks overflows and
// truncated toward zero (world/collective_op.h: Carrier). Factors are applied here, as the engine
// applies those of other reductions: in float64, truncated, saturated at the ends of the dtype.
// Used on a Python thread; on a GPU everything goes to its current stream.
struct IntegerAverage {
  // Nothing for any other request.
  static std::optional<IntegerAverage> Of(const Request& request);

  at::ScalarType dtype = at::kLong;  // Of the elements.
  double prescale = 1.0;
  double postscale = 1.0;

  // What the engine sums for a dense tensor, in new memory; a trailing dimension for more numbers.
  at::Tensor Carry(const at::Tensor& tensor) const;

  // Writes the average to `target`, which may have any strides. Uses up `sum`. `divisor`: the
  // number of ranks in the process set, joined ones included.
  void Finish(const at::Tensor& sum, int64_t divisor, const at::Tensor& target) const;
  // The same in a new tensor.
  at::Tensor Finish(const at::Tensor& sum, int64_t divisor) const;
};

// An average that replaces its sum, a tensor of LateOutputs, when the collective is complete.
struct LateAverage {
  size_t index;
  IntegerAverage average;
  int64_t divisor;
};

// Where the engine puts what it allocates; shared with the callbacks of a Submission.
struct LateOutputs {
  explicit LateOutputs(size_t count) : tensors(count) {}
  std::vector<at::Tensor> tensors;
  std::vector<LateAverage> averages;
  std::vector<int64_t> numbers;  // What the operation found out besides tensors.
};

// What a result looks like before its shape is known. `order`: of its submission.
struct LateTraits {
  at::ScalarType dtype;
  at::Device device;
  OrderPointer order;
  int64_t numbers_per_element = 1;
  at::Tensor given{};  // Where it goes if it has as many elements; undefined: to new memory.
};

// Makes tensor `index` of `late` when the engine asks for its memory. Runs without the GIL on
// whatever thread drives the engine.
OutputAllocator AllocatorOf(std::shared_ptr<LateOutputs> late, size_t index, LateTraits traits);

// An output the engine could not write directly: copied when the collective is complete.
struct WriteBack {
  at::Tensor target;
  at::Tensor source;
};

// An average that is computed from its sum when the collective is complete.
struct EarlyAverage {
  IntegerAverage average;
  at::Tensor sum;
  at::Tensor target;
  int64_t divisor;
};

// A tensor with a version of its own that the engine reads and does not write, and the version when
// it was enqueued.
struct InFlightInput {
  OpKind op;
  std::string name;
  at::Tensor tensor;
  int64_t version = 0;
};

struct InFlightCall {
  std::vector<at::Tensor> memory;  // Everything the engine was given a pointer to.
  std::vector<InFlightInput>
      inputs;  // The program must not write to them before the handle is complete.
  bool is_known_complete = false;  // The caller has polled: it may write to them again.
  // Of `memory`, as it was enqueued: a tensor may be given another storage meanwhile (.data = …).
  std::vector<c10::Storage> storages;
  // While it lives, torch refuses to resize them: that would free memory that the engine uses. Of
  // calls that share a storage, the end of the first lets go of it. Null: nothing can be resized.
  std::shared_ptr<void> pinned;
  std::vector<OrderPointer> orders;  // Of the submissions on GPUs.
  std::vector<at::Tensor> outputs;
  std::vector<WriteBack> write_backs;
  std::vector<EarlyAverage> averages;
  std::shared_ptr<LateOutputs> late;  // Outputs after `outputs`; null when there are none.
  bool gives_numbers = false;         // wait() ends with the numbers of `late`.
};

// Of the job. Throws StatusError as Engine::GetProcessSet says.
ProcessSet SetOf(ProcessSetId id);

class InFlight {
 public:
  static InFlight& Instance();

  // Enqueues and keeps `call` until the handle is waited for. Throws StatusError as
  // Engine::Submit says; nothing has been enqueued then.
  Handle Submit(std::vector<Submission> submissions, InFlightCall call, Pace pace = Pace::kNow)
      MYDIST_EXCLUDES(mutex_);

  // Keeps `call` until the handle, which process gave out otherwise, is waited for. Returns it.
  Handle Keep(Handle handle, InFlightCall call) MYDIST_EXCLUDES(mutex_);

  // Whether the result is there; on a GPU: in order there. ValueError when the handle was never
  // given out or has been waited for.
  bool Poll(Handle handle) MYDIST_EXCLUDES(mutex_);

  // Blocks until complete and gives the outputs, which the current streams of their GPUs then have
  // in front of what follows; throws the collective's error. The handle is used
  // up by both. Ctrl-C raises KeyboardInterrupt and leaves the handle waiting.
  std::vector<at::Tensor> Wait(Handle handle) MYDIST_EXCLUDES(mutex_);

  // Wait, of a handle that no other caller knows: given up, not left waiting, when that is
  // interrupted.
  std::vector<at::Tensor> Fetch(Handle handle) MYDIST_EXCLUDES(mutex_);

  // Wait for many, giving up the GIL only once: appends the outcome of each handle in turn. The
  // caller has the outputs and writes back, or reads what is on a GPU. After Ctrl-C the handles
  // without an outcome remain.
  void WaitAll(std::span<const Handle> handles, std::vector<Status>& outcomes)
      MYDIST_EXCLUDES(mutex_);

  // References to everything in flight now; let go of under the GIL.
  std::shared_ptr<void> Hold() MYDIST_EXCLUDES(mutex_);

  // Nobody will wait for it: forgotten once it is complete.
  void Abandon(Handle handle) MYDIST_EXCLUDES(mutex_);

 private:
  InFlight() = default;
  void Require(Handle handle) MYDIST_EXCLUDES(mutex_);
  // Throws when a current stream cannot go on behind the result.
  void CheckMayFollow(Handle handle) MYDIST_EXCLUDES(mutex_);
  InFlightCall Take(Handle handle) MYDIST_EXCLUDES(mutex_);
  // Of complete ones, which the current streams follow; `has_failed`: some of them may have.
  Status Drop(std::span<const Handle> handles, bool has_failed) MYDIST_EXCLUDES(mutex_);
  void ForgetAbandoned() MYDIST_EXCLUDES(mutex_);

  Mutex mutex_;
  std::unordered_map<Handle, InFlightCall> calls_ MYDIST_GUARDED_BY(mutex_);
  std::vector<Handle> abandoned_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
