// ConvertPlan: what the host works out for a launch: which kernel, its table of segments and how
// they are cut. Pure and without memory of its own; also run by tests.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/status.h"
#include "gpu/kernels/convert_split.h"
#include "memory/device/device.h"

namespace mydist::cuda {

// How a launch is cut; 0: as was found best.
struct ConvertTuning {
  int64_t chunk_units = 0;           // To one block at a time.
  int64_t blocks_per_processor = 0;  // At most; each block takes chunks until none is left.
};

// One kernel's part in a Conversion.
struct ConvertJob {
  int64_t parts;  // Elements of the kernel in one of the tensor: bytes when copied, 2 if complex.
  bool is_copy;
  ElementScaling scaling;
};

// visitor(From{}, To{}, job) with the element types of the kernel. A conversion that does not exist
// aborts.
template <typename Visitor>
auto VisitConversion(const Conversion& conversion, Visitor&& visitor) {
  const auto visit = [&]<typename From, typename To>(From from, To to, int64_t parts) {
    return visitor(from, to,
                   ConvertJob{.parts = parts,
                              .is_copy = std::is_same_v<From, RawByte>,
                              .scaling = ScalingOf(conversion.factor)});
  };
  const auto scale = [&]<typename T>(T, int64_t parts) { return visit(T{}, T{}, parts); };
  const DataType to = conversion.to;
  const bool is_same = conversion.from == to;
  if (is_same && conversion.factor.IsOne()) return visit(RawByte{}, RawByte{}, SizeOf(to));
  switch (conversion.from) {
    case DataType::kUint8:
      if (is_same) return scale(uint8_t{}, 1);
      break;
    case DataType::kInt8:
      if (is_same) return scale(int8_t{}, 1);
      break;
    case DataType::kInt16:
      if (is_same) return scale(int16_t{}, 1);
      break;
    case DataType::kInt32:
      if (is_same) return scale(int32_t{}, 1);
      break;
    case DataType::kInt64:
      if (is_same) return scale(int64_t{}, 1);
      break;
    case DataType::kFloat16:
      if (is_same) return scale(Half{}, 1);
      if (to == DataType::kFloat32) return visit(Half{}, float{}, 1);
      break;
    case DataType::kBfloat16:
      if (is_same) return scale(Bfloat16{}, 1);
      if (to == DataType::kFloat32) return visit(Bfloat16{}, float{}, 1);
      break;
    case DataType::kFloat32:
      if (is_same) return scale(float{}, 1);
      if (to == DataType::kFloat16) return visit(float{}, Half{}, 1);
      if (to == DataType::kBfloat16) return visit(float{}, Bfloat16{}, 1);
      break;
    case DataType::kFloat64:
      if (is_same) return scale(double{}, 1);
      break;
    case DataType::kComplex64:
      if (is_same) return scale(float{}, 2);
      break;
    case DataType::kComplex128:
      if (is_same) return scale(double{}, 2);
      break;
    case DataType::kBool:
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      break;
  }
  // Between other types; and neither bool nor 8-bit floats can be scaled.
  CheckFailed(__FILE__, __LINE__, "the conversion exists");
}

// What the segments with something to do come to.
struct ConvertWork {
  int64_t segment_count = 0;
  int64_t unit_count = 0;  // About.
};

inline bool HasWork(const ConvertSegment& segment, const ConvertJob& job) {
  return segment.element_count > 0 && !(job.is_copy && segment.source == segment.target);
}

// Errors: kInvalidArgument for an address that the type does not allow.
template <typename From, typename To>
Result<ConvertWork> MeasureWork(std::span<const ConvertSegment> segments, const ConvertJob& job) {
  ConvertWork work;
  uintptr_t misaligned = 0;
  for (const ConvertSegment& segment : segments) {
    MYDIST_CHECK(segment.element_count >= 0);
    if (!HasWork(segment, job)) continue;
    ++work.segment_count;
    work.unit_count += segment.element_count * job.parts / ShapeOf<From, To>().UnitElements();
    misaligned |= reinterpret_cast<uintptr_t>(segment.source) % sizeof(From);
    misaligned |= reinterpret_cast<uintptr_t>(segment.target) % sizeof(To);
  }
  if (misaligned == 0) return work;
  return Status::InvalidArgument(
      "got a tensor in GPU memory whose address is not a multiple of its element's size; pass a "
      "copy of it (tensor.clone())");
}

// Chunks as large as they can be with some for every processor.
inline uint32_t ChunkUnitsFor(const ConvertWork& work, int64_t processor_count,
                              const ConvertTuning& tuning) {
  int64_t units = kChunkUnits;
  while (units > kConvertThreads && work.unit_count < 4 * units * processor_count) units /= 2;
  return static_cast<uint32_t>(tuning.chunk_units > 0 ? tuning.chunk_units : units);
}

// Writes the segments that have something to do, at most `capacity`, and what the launch then is.
// Returns how many of `segments` it went through.
template <typename From, typename To>
size_t FillArrays(std::span<const ConvertSegment> segments, const ConvertJob& job, int64_t capacity,
                  const SegmentArrays& arrays, ConvertLaunch& launch) {
  size_t next = 0;
  int64_t count = 0;
  int64_t chunks = 0;
  for (; next < segments.size() && count < capacity; ++next) {
    const ConvertSegment& segment = segments[next];
    if (!HasWork(segment, job)) continue;
    arrays.sources[count] = static_cast<const uint8_t*>(segment.source);
    arrays.targets[count] = static_cast<uint8_t*>(segment.target);
    arrays.counts[count] = segment.element_count * job.parts;
    arrays.first_chunks[count] = static_cast<uint32_t>(chunks);
    const SegmentSplit split = SplitSegment(
        ShapeOf<From, To>(), reinterpret_cast<uintptr_t>(segment.source),
        reinterpret_cast<uintptr_t>(segment.target), segment.element_count * job.parts);
    chunks += ChunksOf(split, launch.chunk_units);
    ++count;
  }
  MYDIST_CHECK(chunks <= kMaxChunks);
  launch.segment_count = static_cast<uint32_t>(count);
  launch.chunk_count = static_cast<uint32_t>(chunks);
  return next;
}

// Blocks for a launch whose chunks are counted.
inline uint32_t BlocksOf(const ConvertLaunch& launch, int64_t processor_count,
                         const ConvertTuning& tuning) {
  const int64_t most = tuning.blocks_per_processor * processor_count;
  if (most <= 0 || launch.chunk_count <= most) return launch.chunk_count;
  return static_cast<uint32_t>(most);
}

}  // namespace mydist::cuda
