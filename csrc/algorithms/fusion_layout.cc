#include "algorithms/fusion_layout.h"

#include <algorithm>
#include <functional>

#include "kernels/element.h"

namespace mydist {
namespace {

// Gives out blocks of changing size from consecutive places of a buffer.
template <typename Byte>
class Cursor {
 public:
  explicit Cursor(Byte* place) : place_(place) {}

  // The next `bytes` bytes; null in a null buffer.
  Byte* Take(int64_t bytes) {
    Byte* taken = place_;
    place_ = Advance(place_, bytes);
    return taken;
  }

 private:
  Byte* place_;
};

void Add(ConvertSegments& segments, void* target, const void* source, int64_t count) {
  if (count > 0 && target != source) segments.push_back({source, target, count});
}

// visitor(tensor, its place in the buffer)
template <typename Byte, typename Visitor>
void VisitPacked(std::span<const BatchTensor> tensors, int64_t element_bytes, Byte* fused,
                 Visitor visitor) {
  Cursor place(fused);
  for (const BatchTensor& tensor : tensors) {
    visitor(tensor, place.Take(tensor.element_count * element_bytes));
  }
}

const std::vector<int64_t>& CountsOf(const GatherTensor& tensor) { return tensor.byte_counts; }
const std::vector<int64_t>& CountsOf(const ScatterTensor& tensor) { return tensor.element_counts; }

// For every rank and tensor in the buffer's order: visitor(index of the tensor, its count).
template <typename Tensor, typename Visitor>
void VisitRankMajor(std::span<const Tensor> tensors, int size, Visitor visitor) {
  for (int rank = 0; rank < size; ++rank) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      visitor(t, CountsOf(tensors[t])[static_cast<size_t>(rank)]);
    }
  }
}

template <typename Tensor>
std::vector<int64_t> SumCounts(std::span<const Tensor> tensors, int size) {
  std::vector<int64_t> sums(static_cast<size_t>(size), 0);
  for (const Tensor& tensor : tensors) {
    for (size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += CountsOf(tensor)[rank];
  }
  return sums;
}

}  // namespace

int64_t PackedBytes(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const BatchTensor& tensor : tensors) bytes += tensor.element_count * element_bytes;
  return bytes;
}

void* PackedOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  uint8_t* start = nullptr;
  const uint8_t* end = nullptr;
  for (const BatchTensor& tensor : tensors) {
    if (tensor.element_count == 0) continue;
    auto* const place = AsBytes(tensor.output);
    if (end != nullptr && place != end) return nullptr;
    if (start == nullptr) start = place;
    end = place + tensor.element_count * element_bytes;
  }
  // A copy to one output must not run over the input of another.
  const auto lies_among_them = [&](const BatchTensor& tensor) {
    if (tensor.element_count == 0 || tensor.input == tensor.output) return false;
    const auto* const input = AsBytes(tensor.input);
    const std::less<const uint8_t*> before;
    return before(input, end) && before(start, input + tensor.element_count * element_bytes);
  };
  return std::any_of(tensors.begin(), tensors.end(), lies_among_them) ? nullptr : start;
}

ConvertSegments Pack(std::span<const BatchTensor> tensors, int64_t element_bytes, uint8_t* fused) {
  ConvertSegments segments;
  segments.reserve(tensors.size());
  VisitPacked(tensors, element_bytes, fused, [&](const BatchTensor& tensor, uint8_t* place) {
    if (!tensor.is_wide) Add(segments, place, tensor.input, tensor.element_count * element_bytes);
  });
  return segments;
}

ConvertSegments Unpack(const uint8_t* fused, int64_t element_bytes,
                       std::span<const BatchTensor> tensors) {
  ConvertSegments segments;
  segments.reserve(tensors.size());
  VisitPacked(tensors, element_bytes, fused, [&](const BatchTensor& tensor, const uint8_t* place) {
    if (!tensor.is_wide) Add(segments, tensor.output, place, tensor.element_count * element_bytes);
  });
  return segments;
}

ConvertSegments PackWide(std::span<const BatchTensor> tensors, int64_t element_bytes,
                         uint8_t* fused) {
  ConvertSegments segments;
  VisitPacked(tensors, element_bytes, fused, [&](const BatchTensor& tensor, uint8_t* place) {
    if (tensor.is_wide) Add(segments, place, tensor.input, tensor.element_count);
  });
  return segments;
}

ConvertSegments UnpackWide(const uint8_t* fused, int64_t element_bytes,
                           std::span<const BatchTensor> tensors) {
  ConvertSegments segments;
  VisitPacked(tensors, element_bytes, fused, [&](const BatchTensor& tensor, const uint8_t* place) {
    if (tensor.is_wide) Add(segments, tensor.output, place, tensor.element_count);
  });
  return segments;
}

ConvertSegments CopyToOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  ConvertSegments segments;
  for (const BatchTensor& tensor : tensors) {
    Add(segments, tensor.output, tensor.input, tensor.element_count * element_bytes);
  }
  return segments;
}

std::vector<int64_t> FusedCounts(std::span<const GatherTensor> tensors, int size) {
  return SumCounts(tensors, size);
}

std::vector<int64_t> FusedCounts(std::span<const ScatterTensor> tensors, int size) {
  return SumCounts(tensors, size);
}

ConvertSegments PackContribution(std::span<const GatherTensor> tensors, int rank, uint8_t* own) {
  ConvertSegments segments;
  Cursor target(own);
  for (const GatherTensor& tensor : tensors) {
    const int64_t bytes = tensor.byte_counts[static_cast<size_t>(rank)];
    Add(segments, target.Take(bytes), tensor.input, bytes);
  }
  return segments;
}

ConvertSegments UnpackGathered(const uint8_t* fused, std::span<const GatherTensor> tensors,
                               int size) {
  ConvertSegments segments;
  std::vector<Cursor<uint8_t>> outputs;
  for (const GatherTensor& tensor : tensors) outputs.emplace_back(AsBytes(tensor.output));
  Cursor source(fused);
  const auto add = [&](size_t t, int64_t bytes) {
    Add(segments, outputs[t].Take(bytes), source.Take(bytes), bytes);
  };
  VisitRankMajor(tensors, size, add);
  return segments;
}

ConvertSegments PackRankMajor(std::span<const ScatterTensor> tensors, int64_t element_bytes,
                              int size, uint8_t* fused) {
  ConvertSegments segments;
  std::vector<Cursor<const uint8_t>> inputs;
  for (const ScatterTensor& tensor : tensors) inputs.emplace_back(AsBytes(tensor.input));
  Cursor target(fused);
  const auto add = [&](size_t t, int64_t elements) {
    const int64_t bytes = elements * element_bytes;
    Add(segments, target.Take(bytes), inputs[t].Take(bytes), bytes);
  };
  VisitRankMajor(tensors, size, add);
  return segments;
}

ConvertSegments UnpackScattered(const uint8_t* reduced, int64_t element_bytes, int rank,
                                std::span<const ScatterTensor> tensors) {
  ConvertSegments segments;
  Cursor source(reduced);
  for (const ScatterTensor& tensor : tensors) {
    const int64_t bytes = tensor.element_counts[static_cast<size_t>(rank)] * element_bytes;
    Add(segments, tensor.output, source.Take(bytes), bytes);
  }
  return segments;
}

int64_t AlignedBytes(int64_t bytes) {
  constexpr int64_t kUnit = FusionBuffer::kAlignmentBytes;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace mydist
