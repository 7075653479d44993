#include "gpu/kernels/convert.h"

#include "gpu/kernels/convert_thread.h"
#include "gpu/kernels/cuda_status.h"
#include "gpu/kernels/kernel_launch.h"

namespace mydist::cuda {
namespace {

// A small table, which costs the host little, for most launches, and the largest that fits.
using FewSegments = SegmentTable<192>;
using ManySegments = SegmentTable<1152>;
constexpr size_t kMaxParameterBytes = 32764;
static_assert(sizeof(ManySegments) + sizeof(ConvertLaunch) <= kMaxParameterBytes);

template <typename From, typename To, typename Table>
__global__ void __launch_bounds__(kConvertThreads)
    ConvertKernel(const __grid_constant__ Table table,
                  const __grid_constant__ ConvertLaunch launch) {
  ConvertAsThread<From, To>(table, launch, {blockIdx.x, gridDim.x, threadIdx.x});
}

// A call of LaunchConvert, with its kernel.
template <typename From, typename To>
struct ConvertCall {
  const ConvertJob& job;
  const ConvertTuning& tuning;
  ConvertScratch& scratch;
  cudaStream_t stream;

  Status Run(std::span<const ConvertSegment> segments) const {
    MYDIST_ASSIGN_OR_RETURN(const ConvertWork work, (MeasureWork<From, To>(segments, job)));
    if (work.segment_count == 0) return Status::Ok();
    const ConvertLaunch launch = {
        .chunk_units = ChunkUnitsFor(work, scratch.processor_count(), tuning),
        .scaling = job.scaling};
    if (work.segment_count <= FewSegments::kCapacity) {
      return LaunchWith<FewSegments>(segments, launch);
    }
    if (work.segment_count <= ManySegments::kCapacity) {
      return LaunchWith<ManySegments>(segments, launch);
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    MYDIST_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream, &capture));
    ConvertTable* table = nullptr;
    if (capture == cudaStreamCaptureStatusNone) {
      MYDIST_ASSIGN_OR_RETURN(table, scratch.Take(work.segment_count));
    }
    if (table == nullptr) return LaunchWith<ManySegments>(segments, launch);
    const Status launched = LaunchFrom(*table, segments, work.segment_count, launch);
    MYDIST_RETURN_IF_ERROR(scratch.Return(*table, stream));
    return launched;
  }

  // With the segments in parameters; as many launches as it takes.
  template <typename Table>
  Status LaunchWith(std::span<const ConvertSegment> segments, ConvertLaunch launch) const {
    Table table;
    while (!segments.empty()) {
      const size_t done =
          FillArrays<From, To>(segments, job, Table::kCapacity, table.Arrays(), launch);
      if (launch.segment_count > 0) MYDIST_RETURN_IF_ERROR(Launch(table, launch));
      segments = segments.subspan(done);
    }
    return Status::Ok();
  }

  Status LaunchFrom(const ConvertTable& table, std::span<const ConvertSegment> segments,
                    int64_t segment_count, ConvertLaunch launch) const {
    FillArrays<From, To>(segments, job, segment_count, ArraysIn(table.pinned, segment_count),
                         launch);
    const auto bytes = static_cast<size_t>(segment_count * kBytesPerSegment);
    MYDIST_RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(table.memory, table.pinned, bytes, cudaMemcpyHostToDevice, stream));
    return Launch(ArraysIn(table.memory, segment_count), launch);
  }

  template <typename Table>
  Status Launch(const Table& table, const ConvertLaunch& launch) const {
    return LaunchKernel(
        "cudaLaunchKernel(Convert)", ConvertKernel<From, To, Table>,
        {.blocks = BlocksOf(launch, scratch.processor_count(), tuning), .threads = kConvertThreads},
        stream, table, launch);
  }
};

template <typename From, typename To, typename... Tables>
Status LoadInstances() {
  Status loaded;
  static_cast<void>(
      ((loaded = LoadKernel("cudaFuncGetAttributes(Convert)", ConvertKernel<From, To, Tables>))
           .ok() &&
       ...));
  return loaded;
}

Status LoadKernels(const Conversion& conversion) {
  return VisitConversion(conversion, []<typename From, typename To>(From, To, const ConvertJob&) {
    return LoadInstances<From, To, FewSegments, ManySegments, SegmentArrays>();
  });
}

}  // namespace

Status LoadConvertKernels() {
  constexpr Factor kTwice = {.multiplier = 2.0};
  MYDIST_RETURN_IF_ERROR(LoadKernels({}));
  for (int number = 0; number < kDataTypeCount; ++number) {
    const auto dtype = static_cast<DataType>(number);
    if (dtype == DataType::kBool || IsFloat8(dtype)) continue;
    MYDIST_RETURN_IF_ERROR(LoadKernels({dtype, dtype, kTwice}));
    if (dtype != DataType::kFloat16 && dtype != DataType::kBfloat16) continue;
    MYDIST_RETURN_IF_ERROR(LoadKernels({dtype, DataType::kFloat32}));
    MYDIST_RETURN_IF_ERROR(LoadKernels({DataType::kFloat32, dtype}));
  }
  return Status::Ok();
}

Status LaunchConvert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                     ConvertScratch& scratch, cudaStream_t stream, const ConvertTuning& tuning) {
  return VisitConversion(conversion,
                         [&]<typename From, typename To>(From, To, const ConvertJob& job) {
                           return ConvertCall<From, To>{job, tuning, scratch, stream}.Run(segments);
                         });
}

}  // namespace mydist::cuda
