// CollectiveCall: one call of Python on its way to a handle. Collects the tensors, checks them,
// lays them out and enqueues them together. Lives on the calling Python thread, with the GIL held,
// for the time of the call; what it refuses is refused before any communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/handle_table.h"
#include "engine/submission.h"
#include "torch/in_flight.h"
#include "torch/reduction_check.h"
#include "world/collective_op.h"
#include "world/process_set.h"

namespace mydist {

// Properties that all tensors of one call have in common.
struct CallTraits {
  OpKind op;
  std::string group{};
  ProcessSetId process_set = kGlobalProcessSet;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root_rank = -1;
  WireFormat wire_format = WireFormat::kAsIs;  // Of an allreduce.
};

// For a tensor of a call, of `group_size` tensors if it has a group. Without memory yet.
Submission NewSubmission(const CallTraits& traits, const std::string& name, DataType dtype,
                         const Shape& shape, const at::Device& device, size_t group_size);

// All methods throw StatusError with kInvalidArgument or kTypeError for what they refuse.
class CollectiveCall {
 public:
  // A global rank, and what the user called it: "root_rank", "destination".
  struct Place {
    const char* argument;
    int32_t rank;
  };

  CollectiveCall(CallTraits traits, size_t tensor_count);

  [[noreturn]] static void Refuse(std::string message);

  // "allreduce of 'grad'", for messages; checks the name. Valid until the next call of it, because
  // each tensor needs this text several times and messages are rare: it allocates once.
  const std::string& What(const std::string& name);

  // The set of the call. This process has to be a member of it.
  const ProcessSet& Members();
  int Size() { return Members().size(); }
  void RequireMember(const Place& place, const std::string& name);

  // A tensor the engine reads: kept alive, and a copy where it is not dense. An average of integers
  // reads a wider copy.
  Submission& AddInput(const at::Tensor& tensor, const std::string& name);
  // One that only says which dtype and shape this rank expects.
  Submission& AddShape(const at::Tensor& tensor, const std::string& name);
  // One that the engine writes and no caller reads.
  Submission& AddOutput(const at::Tensor& tensor, const std::string& name);
  // The result has the shape of the input and goes to `output`, which may be the input itself;
  // null: to a new tensor.
  Submission& AddInputAndOutput(const at::Tensor& input, const at::Tensor* output,
                                const std::string& name);
  // No tensor at all: a barrier, or a change of the process sets.
  Submission& AddSignal(const std::string& name);

  // The outputs of what has been added are made when the engine knows their shapes. `given`: memory
  // for each of them, used where it has the right number of elements; empty: none.
  void AllocateLate(std::span<const at::Tensor> given = {});
  // wait() gives, after the tensors, the numbers that the engine reports for the last one added.
  void ReceiveNumbers();

  // Does not wake the engine: the caller waits at once, or hurries.
  Handle Enqueue();

 private:
  Submission& Add(const std::string& name, DataType dtype, const Shape& shape,
                  const at::Device& device);
  static void NoteWrite(const at::Tensor& output);
  void AverageTo(Submission& submission, const IntegerAverage& average, const at::Tensor& output);
  void WriteTo(Submission& submission, const at::Tensor& output, at::Tensor dense);
  void CheckGiven(std::span<const at::Tensor> given);
  void CheckOutput(const at::Tensor& input, const at::Tensor& output, const std::string& name);
  void RefuseOverlappingOutputs();

  CallTraits traits_;
  size_t count_;
  std::string what_;
  std::optional<ProcessSet> members_;
  std::vector<Submission> submissions_;
  InFlightCall call_;
  std::shared_ptr<LateOutputs> late_;
};

// The op of a number that came from Python.
ReduceOp ToReduceOp(OpKind op, int number);

// The first dimension is what allgather, alltoall, reducescatter and scatter split or join.
void RequireFirstDim(const at::Tensor& tensor, const std::string& what);

// Refuses splits that are not one count for each of `size` ranks, summing to the first dimension.
void CheckSplits(const std::vector<int64_t>& splits, const at::Tensor& input, int size,
                 const std::string& what);

}  // namespace mydist
