#include "gpu/kernels/convert.h"

#include <optional>
#include <type_traits>

#include "gpu/kernels/convert_plan.h"
#include "gpu/kernels/cuda_status.h"
#include "gpu/kernels/kernel_launch.h"

namespace mydist::cuda {
namespace {

// Most lists fit into the small one, which costs the host little. The other is the largest
// possible.
using FewSegments = ConvertLaunch<192>;
using ManySegments = ConvertLaunch<1152>;
constexpr size_t kMaxParameterBytes = 32764;
static_assert(sizeof(ManySegments) <= kMaxParameterBytes);

template <typename From, typename To, typename Launch>
__global__ void __launch_bounds__(kConvertThreads)
    ConvertKernel(const __grid_constant__ Launch launch) {
  ConvertAsThread<From, To>(launch, blockIdx.x, threadIdx.x);
}

// The kernel's element behind one of a tensor: complex numbers are two.
template <typename T>
struct PartOf {
  using Type = T;
  static constexpr int64_t kCount = 1;
};
template <typename T>
struct PartOf<Complex<T>> {
  using Type = T;
  static constexpr int64_t kCount = 2;
};

template <typename T>
constexpr bool kIsHalfWidth = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;
template <typename From, typename To>
constexpr bool kIsConvertible =
    std::is_same_v<From, To> ? !std::is_same_v<From, Bool>
                             : (kIsHalfWidth<From> && std::is_same_v<To, float>) ||
                                   (std::is_same_v<From, float> && kIsHalfWidth<To>);

// What visitor(From{}, To{}, parts) returns, with the element types of the kernel and how many such
// elements one of the tensor is. Nothing for a conversion that does not exist.
template <typename Visitor>
std::optional<Status> VisitConversion(const Conversion& conversion, const Visitor& visitor) {
  if (conversion.IsCopy()) return visitor(RawByte{}, RawByte{}, SizeOf(conversion.to));
  std::optional<Status> visited;
  if (IsFloat8(conversion.from) || IsFloat8(conversion.to)) return visited;
  VisitElement(conversion.from, [&]<typename From>(From) {
    VisitElement(conversion.to, [&]<typename To>(To) {
      if constexpr (kIsConvertible<From, To>) {
        visited = visitor(typename PartOf<From>::Type{}, typename PartOf<To>::Type{},
                          PartOf<From>::kCount);
      }
    });
  });
  return visited;
}

template <typename From, typename To>
Status Launch(std::span<const ConvertSegment> segments, int64_t parts,
              const ElementScaling& scaling, int processor_count, cudaStream_t stream) {
  MYDIST_ASSIGN_OR_RETURN(const ConvertWork work, (MeasureWork<From, To>(segments, parts)));
  // As many launches as it takes.
  const auto launch_all = [&]<typename Parameters>(Parameters launch) -> Status {
    launch.chunk_units = ChunkUnitsFor(work.unit_count, processor_count);
    launch.scaling = scaling;
    while (!segments.empty()) {
      segments = segments.subspan(FillLaunch<From, To>(segments, parts, launch));
      if (launch.segment_count == 0) break;
      MYDIST_RETURN_IF_ERROR(
          LaunchKernel("cudaLaunchKernel(Convert)", ConvertKernel<From, To, Parameters>,
                       {.blocks = launch.chunk_count, .threads = kConvertThreads}, stream, launch));
    }
    return Status::Ok();
  };
  return work.segment_count <= FewSegments::kCapacity ? launch_all(FewSegments{})
                                                      : launch_all(ManySegments{});
}

}  // namespace

Status LaunchConvert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                     int processor_count, cudaStream_t stream) {
  const ElementScaling scaling = ScalingOf(conversion.factor);
  const auto launch = [&]<typename From, typename To>(From, To, int64_t parts) {
    return Launch<From, To>(segments, parts, scaling, processor_count, stream);
  };
  const std::optional<Status> launched = VisitConversion(conversion, launch);
  MYDIST_CHECK(launched.has_value());
  return *launched;
}

Status LoadConvertKernels() {
  const auto load = []<typename From, typename To>(From, To, int64_t) {
    const char* const call = "cudaFuncGetAttributes(Convert)";
    MYDIST_RETURN_IF_ERROR(LoadKernel(call, ConvertKernel<From, To, FewSegments>));
    return LoadKernel(call, ConvertKernel<From, To, ManySegments>);
  };
  // The copy, and all that have a factor.
  MYDIST_RETURN_IF_ERROR(VisitConversion({}, load).value());
  for (int number = 0; number < kDataTypeCount * kDataTypeCount; ++number) {
    const auto from = static_cast<DataType>(number / kDataTypeCount);
    const auto to = static_cast<DataType>(number % kDataTypeCount);
    const auto loaded = VisitConversion({from, to, {.divisor = 2}}, load);
    if (loaded.has_value()) MYDIST_RETURN_IF_ERROR(*loaded);
  }
  return Status::Ok();
}

}  // namespace mydist::cuda
