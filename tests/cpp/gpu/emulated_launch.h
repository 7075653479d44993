// EmulatedLaunch: LaunchConvert on the host: the same plan and, thread by thread, the same code.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/kernels/convert_plan.h"
#include "gpu/kernels/convert_thread.h"

namespace mydist::testing {

struct EmulatedLaunch {
  int64_t processor_count = 132;
  cuda::ConvertTuning tuning{};
  bool is_backward = false;  // The last block and thread first: no thread may count on another.

  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion) const;
};

// No member: some compilers forget a template that only a lambda of a member calls.
template <typename From, typename To, typename Table>
void RunThreads(const EmulatedLaunch& how, const Table& table, const cuda::ConvertLaunch& launch) {
  const uint32_t blocks = BlocksOf(launch, how.processor_count, how.tuning);
  const uint64_t thread_count = uint64_t{blocks} * cuda::kConvertThreads;
  for (uint64_t i = 0; i < thread_count; ++i) {
    const uint64_t at = how.is_backward ? thread_count - 1 - i : i;
    cuda::ConvertAsThread<From, To>(table, launch,
                                    {.block = static_cast<uint32_t>(at / cuda::kConvertThreads),
                                     .block_count = blocks,
                                     .thread = static_cast<uint32_t>(at % cuda::kConvertThreads)});
  }
}

inline Status EmulatedLaunch::Convert(std::span<const ConvertSegment> segments,
                                      const Conversion& conversion) const {
  const EmulatedLaunch& how = *this;
  return cuda::VisitConversion(
      conversion, [&]<typename From, typename To>(From, To, const cuda::ConvertJob& job) -> Status {
        MYDIST_ASSIGN_OR_RETURN(const cuda::ConvertWork work,
                                (cuda::MeasureWork<From, To>(segments, job)));
        cuda::ConvertLaunch launch = {
            .chunk_units = ChunkUnitsFor(work, how.processor_count, how.tuning),
            .scaling = job.scaling};
        std::vector<uint64_t> memory(
            static_cast<size_t>(work.segment_count * cuda::kBytesPerSegment / 8 + 1));
        const cuda::SegmentArrays arrays = cuda::ArraysIn(memory.data(), work.segment_count);
        cuda::FillArrays<From, To>(segments, job, work.segment_count, arrays, launch);
        RunThreads<From, To>(how, arrays, launch);
        return Status::Ok();
      });
}

}  // namespace mydist::testing
