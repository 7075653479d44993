// Which gradients are enqueued together, and where they lie; decided once per parameter.
#include <ATen/core/grad_mode.h>

#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "job/process.h"
#include "torch/error_translation.h"
#include "torch/gradients/gradient_reducer.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

std::string ReasonOf(const Config& config, const PathCosts& costs, int64_t total_bytes) {
  if (config.bucket_size_bytes) return "MYDIST_BUCKET_SIZE_MB is set";
  if (!costs.measured()) return "nothing was measured";
  std::ostringstream reason;
  reason.precision(3);
  reason << "sqrt(" << static_cast<double>(total_bytes) * 1e-6 << " MB x "
         << costs.latency.count() * 1e6 << " us x " << 1e-9 / costs.seconds_per_byte << " GB/s)";
  return reason.str();
}

}  // namespace

// Backward goes through the parameters more or less against the order in which they were made.
std::vector<size_t> GradientReducer::TakeUnplaced() {
  std::vector<size_t> unplaced;
  for (size_t index = parameters_.size(); index-- > 0;) {
    Parameter& parameter = parameters_[index];
    const bool takes_part = parameter.tensor.requires_grad() || !parameter.group.empty();
    if (parameter.is_laid_out || !takes_part) continue;
    parameter.is_laid_out = true;
    if (parameter.sparse_dims == 0) unplaced.push_back(index);
  }
  return unplaced;
}

void GradientReducer::LayOut() {
  const std::vector<size_t> unplaced = TakeUnplaced();
  if (unplaced.empty()) return;
  std::vector<BucketMember> members;
  int64_t total_bytes = 0;
  for (const size_t index : unplaced) {
    const Parameter& parameter = parameters_[index];
    const at::ScalarType dtype = WireDtype(parameter.tensor.scalar_type());
    const auto bytes = static_cast<int64_t>(c10::elementSize(dtype)) * parameter.tensor.numel();
    members.push_back({.dtype = *ToDataType(dtype), .bytes = bytes, .group = parameter.group});
    total_bytes += bytes;
  }
  const Config config = ValueOrThrow(process::GetConfig());
  const PathCosts costs = ValueOrThrow(process::Costs());
  const BucketSizes sizes = ChooseBucketSizes(
      total_bytes, costs,
      {.wanted_bytes = config.bucket_size_bytes, .most_bytes = config.fusion_threshold_bytes});
  std::vector<std::vector<size_t>> plan = PlanBuckets(members, sizes);
  layouts_.push_back({plan.size(), sizes, ReasonOf(config, costs, total_bytes)});
  for (std::vector<size_t>& bucket : plan) {
    for (size_t& member : bucket) member = unplaced[member];
  }
  if (buffer_views_) ReserveSlots(plan);
  if (ValueOrThrow(process::GetTopology()).rank == 0) {
    MYDIST_LOG(kInfo) << "reduces " << unplaced.size() << " gradients of " << total_bytes
                      << " bytes in " << plan.size() << " buckets of up to " << sizes.bytes
                      << " bytes: " << layouts_.back().reason;
  }
  buckets_.Add(std::move(plan));
}

void GradientReducer::ReserveSlots(std::span<const std::vector<size_t>> buckets) {
  const at::NoGradGuard no_grad;
  std::vector<GradientSlots::Extent> extents;
  for (const std::vector<size_t>& bucket : buckets) {
    for (const size_t index : bucket) {
      const at::Tensor& tensor = parameters_[index].tensor;
      // To slots it would be a launch for each gradient.
      if (IsCastByEngine(tensor)) continue;
      extents.push_back({.index = index,
                         .device = tensor.device(),
                         .dtype = WireDtype(tensor.scalar_type()),
                         .element_count = tensor.numel()});
    }
  }
  try {
    slots_.Add(extents);
  } catch (const StatusError& error) {
    MYDIST_LOG(kWarning) << "gradients are copied to a buffer before they are reduced, which is "
                            "slower; "
                         << error.status().message();
    return;
  }
  // What is held already moves in, unless the user has been at it: Finish will say so.
  for (const GradientSlots::Extent& extent : extents) {
    Parameter& parameter = parameters_[extent.index];
    if (!parameter.in_flight || parameter.in_flight->handle) continue;
    InFlightGradient& held = *parameter.in_flight;
    if (!CheckUntouched(parameter, held).ok()) continue;
    if (held.gradient.defined()) {
      MakeDenseWire(extent.index, held);
    } else {
      MakeZeros(parameter, held);
    }
    held.stream = StreamOf(parameter);
  }
}

}  // namespace mydist
