#include "torch/gradients/gradient_slots.h"

#include <ATen/core/grad_mode.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "job/job.h"
#include "torch/error_translation.h"
#include "torch/gpu_order.h"
#include "torch/gradients/gradient_reducer.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

[[noreturn]] void RefuseMemory(int64_t bytes, const std::string& where, const std::string& why) {
  throw StatusError(Status::Internal("out of memory" + why + ": " + std::to_string(bytes) +
                                     " bytes are needed for gradients; free memory on " + where +
                                     " or pass gradient_as_buffer_view=False to "
                                     "DistributedOptimizer"));
}

// Pages are taken when they are first written.
std::shared_ptr<void> AllocatePrivate(int64_t bytes) {
  const auto wanted = static_cast<size_t>(bytes);
  const size_t unit = wanted >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const size_t rounded = (wanted + unit - 1) / unit * unit;
  void* const memory = std::aligned_alloc(unit, rounded);
  if (memory == nullptr) RefuseMemory(bytes, "this host, run fewer ranks on it,", "");
  // Only a hint: without it the gradients take more entries of the processor's page table.
  if (unit == kHugePageBytes) static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
  return {memory, [](void* allocated) { std::free(allocated); }};
}

c10::Storage AllocateOnGpu(const at::Device& device, int64_t bytes) {
  try {
    return EmptyOn(device, {bytes}, at::kByte).storage();
  } catch (const std::exception& error) {
    RefuseMemory(bytes, device.str(), std::string(" (") + error.what() + ")");
  }
}

// Where the other ranks of this host can reach it, if there is such a place.
std::shared_ptr<void> AllocateOnHost(int64_t bytes) {
  const auto job = process::CurrentJob();
  const auto shared = job.ok() ? (*job)->engine().AllocateShared(bytes) : nullptr;
  return shared != nullptr ? shared : AllocatePrivate(bytes);
}

// The storage is one of many owners of the memory.
c10::Storage StorageOver(const std::shared_ptr<void>& memory, void* place, int64_t bytes,
                         const at::Device& device) {
  using Owner = std::shared_ptr<void>;
  at::DataPtr data(
      place, new Owner(memory), [](void* owner) { delete static_cast<Owner*>(owner); }, device);
  return {c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), std::move(data), nullptr,
          false};
}

}  // namespace

at::Tensor EmptyInReach(int64_t bytes) {
  at::Tensor tensor = EmptyOn(at::kCPU, {0}, at::kByte);
  if (bytes == 0) return tensor;
  const std::shared_ptr<void> memory = AllocateOnHost(bytes);
  tensor.set_(StorageOver(memory, memory.get(), bytes, at::kCPU), 0, {bytes});
  return tensor;
}

void GradientSlots::Add(std::span<const Extent> extents) {
  using Kind = std::pair<int32_t, at::ScalarType>;  // Of elements that lie together.
  struct Region {
    at::Device device = at::kCPU;
    int64_t bytes = 0;
    std::shared_ptr<void> memory{};
    int64_t used_bytes = 0;
  };
  std::map<Kind, Region> regions;
  size_t count = slots_.size();
  const auto kind_of = [](const Extent& extent) {
    return Kind{DeviceNumber(extent.device), extent.dtype};
  };
  const auto bytes_of = [](const Extent& extent) {
    return extent.element_count * static_cast<int64_t>(c10::elementSize(extent.dtype));
  };
  for (const Extent& extent : extents) {
    Region& region = regions[kind_of(extent)];
    region.device = extent.device;
    region.bytes += bytes_of(extent);
    count = std::max(count, extent.index + 1);
  }
  std::vector<c10::Storage> on_gpus;
  for (auto& [kind, region] : regions) {
    if (region.bytes == 0) continue;
    if (region.device.is_cpu()) {
      region.memory = AllocateOnHost(region.bytes);
      continue;
    }
    const auto storage = std::make_shared<c10::Storage>(AllocateOnGpu(region.device, region.bytes));
    region.memory = std::shared_ptr<void>(storage, storage->mutable_data());
    on_gpus.push_back(*storage);
  }
  slots_.resize(count);
  gpu_memory_.insert(gpu_memory_.end(), on_gpus.begin(), on_gpus.end());
  for (const Extent& extent : extents) {
    const int64_t bytes = bytes_of(extent);
    if (bytes == 0) continue;
    Region& region = regions[kind_of(extent)];
    void* const place = static_cast<uint8_t*>(region.memory.get()) + region.used_bytes;
    slots_[extent.index] = {StorageOver(region.memory, place, bytes, extent.device), place,
                            extent.dtype};
    region.used_bytes += bytes;
    bytes_ += bytes;
  }
}

const GradientSlots::Slot* GradientSlots::Find(size_t index) const {
  if (index >= slots_.size() || !slots_[index].storage) return nullptr;
  const Slot& slot = slots_[index];
  // share_memory_(), for one, gives a storage other memory.
  return slot.storage.data() == slot.place ? &slot : nullptr;
}

bool GradientSlots::Holds(size_t index, const at::Tensor& tensor) const {
  const Slot* const slot = Find(index);
  return slot != nullptr && tensor.has_storage() && tensor.storage().is_alias_of(slot->storage) &&
         tensor.scalar_type() == slot->dtype && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg() && static_cast<size_t>(tensor.nbytes()) == slot->storage.nbytes();
}

at::Tensor GradientSlots::Take(size_t index, at::IntArrayRef sizes, at::ScalarType dtype,
                               const at::Device& device) const {
  const Slot* const slot = Find(index);
  if (slot == nullptr || slot->dtype != dtype || slot->storage.use_count() != 1) return {};
  // A model that has moved takes no gradient of where it was.
  if (slot->storage.device() != device) return {};
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (bytes != slot->storage.nbytes()) return {};
  at::Tensor tensor = EmptyOn(device, {0}, dtype);
  tensor.set_(slot->storage, 0, sizes);
  return tensor;
}

void GradientSlots::GiveUp(size_t index) {
  if (index >= slots_.size() || !slots_[index].storage) return;
  bytes_ -= static_cast<int64_t>(slots_[index].storage.nbytes());
  slots_[index] = {};
}

std::vector<c10::Storage> GradientSlots::GpuMemory() {
  std::erase_if(gpu_memory_, [](const c10::Storage& memory) { return memory.use_count() == 1; });
  return gpu_memory_;
}

bool HasMemoryOfItsOwn(const at::Tensor& tensor) {
  return tensor.storage().nbytes() <= static_cast<size_t>(tensor.nbytes());
}

bool IsKnownToPython(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

bool CanMove(const at::Tensor& tensor, bool is_fresh) {
  const bool is_ordinary =
      !tensor.requires_grad() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  const bool is_alone = HasMemoryOfItsOwn(tensor) && tensor.storage().use_count() == 1;
  return is_ordinary && (is_fresh || is_alone);
}

// Which gradients are enqueued together, and where they lie; decided once per parameter.

namespace {

std::string ReasonOf(const Config& config, const PathCosts& costs, int64_t total_bytes) {
  if (config.bucket_size_bytes) return "MYDIST_BUCKET_SIZE_MB is set";
  if (!costs.measured()) return "default, nothing was measured";
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
  const std::shared_ptr<Job> job = ValueOrThrow(process::CurrentJob());
  const Config& config = job->engine().config();
  const PathCosts& costs = job->engine().costs();
  const BucketSizes sizes = ChooseBucketSizes(
      total_bytes, costs,
      {.wanted_bytes = config.bucket_size_bytes, .most_bytes = config.fusion_threshold_bytes});
  std::vector<std::vector<size_t>> plan = PlanBuckets(members, sizes);
  layouts_.push_back({plan.size(), sizes, ReasonOf(config, costs, total_bytes)});
  for (std::vector<size_t>& bucket : plan) {
    for (size_t& member : bucket) member = unplaced[member];
  }
  if (buffer_views_) ReserveSlots(plan);
  if (job->engine().topology().rank == 0) {
    MYDIST_LOG(kInfo) << "the optimizer reduces " << unplaced.size() << " gradients of "
                      << total_bytes << " bytes in " << plan.size() << " buckets of up to "
                      << sizes.bytes << " bytes: " << layouts_.back().reason;
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
    MYDIST_LOG(kWarning)
        << "gradients are copied to a buffer before they are reduced, which is slower: "
        << error.status().message();
    return;
  }
  // Gradients that are held already move in, unless the user changed them: Finish reports that.
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

void GradientBuckets::Add(std::vector<std::vector<size_t>> buckets) {
  for (std::vector<size_t>& members : buckets) {
    for (const size_t parameter : members) {
      bucket_of_.resize(std::max(bucket_of_.size(), parameter + 1));
      bucket_of_[parameter] = buckets_.size();
    }
    buckets_.push_back({.members = std::move(members), .is_open = false, .awaited = {}});
  }
}

bool GradientBuckets::Has(size_t parameter) const {
  return parameter < bucket_of_.size() && bucket_of_[parameter].has_value();
}

std::optional<size_t> GradientBuckets::Ready(size_t parameter,
                                             const std::function<bool(size_t)>& is_expected) {
  const size_t number = *bucket_of_[parameter];
  Bucket& bucket = buckets_[number];
  const bool was_open = std::exchange(bucket.is_open, true);
  if (!was_open) {
    std::copy_if(bucket.members.begin(), bucket.members.end(), std::back_inserter(bucket.awaited),
                 is_expected);
  } else if (bucket.awaited.empty()) {
    return number;
  }
  std::erase(bucket.awaited, parameter);
  if (!bucket.awaited.empty()) return std::nullopt;
  ++due_count_;
  return number;
}

void GradientBuckets::NextStep() {
  due_count_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.is_open = false;
    bucket.awaited.clear();
  }
}

void GradientBuckets::Clear() {
  buckets_.clear();
  bucket_of_.clear();
  due_count_ = 0;
}

}  // namespace mydist
