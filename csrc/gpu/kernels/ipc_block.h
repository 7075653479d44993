// RunIpcBlock: what one block of the allreduce between GPUs of a host does. The GPU runs its
// threads at once; tests run them on the host, step by step, with each rank on a thread of its own.
// One shot: every rank puts its input on its board, meets the others and folds what lies on all
// boards. Two shots: it folds its slice only, puts that on its board, meets the others again and
// collects the slices. A half of a board is written again two launches later: by then every rank
// has met us in the launch between, which came, on its stream, behind all its reading.
#pragma once

#include <cstdint>

#include "gpu/kernels/fold_unit.h"
#include "memory/device/ipc_port.h"

namespace mydist::cuda {

inline constexpr int kIpcThreads = 256;
// Between two looks at the host's memory, which are slow.
inline constexpr uint32_t kSpinsPerLook = 256;

// An IpcAllreduce as the kernel has it; counts are of the kernel's elements.
struct IpcLaunch {
  const uint8_t* input;
  uint8_t* output;
  int64_t count;
  uint8_t* boards[kMaxIpcRanks];
  const uint32_t* abort_word;
  uint64_t epoch;
  int32_t rank;
  int32_t size;
  bool in_two_shots;
  bool is_aligned;  // Input and output, to units.
  FoldSteps steps;
};

// Flags order the memory of all GPUs and processes of the host, not of the block alone.
MYDIST_ALWAYS_INLINE void StoreFlag(uint8_t* flag, uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#else
  __atomic_store_n(reinterpret_cast<uint64_t*>(flag), value, __ATOMIC_RELEASE);
#endif
}

MYDIST_ALWAYS_INLINE uint64_t LoadFlag(const uint8_t* flag) {
#if defined(__CUDA_ARCH__)
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
#else
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(flag), __ATOMIC_ACQUIRE);
#endif
}

MYDIST_ALWAYS_INLINE uint32_t LoadWord(const uint32_t* word) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

// Whether the block `block` of rank `peer` has come as far as ours; false: the wait was aborted. It
// may be a launch ahead.
template <typename Block>
MYDIST_ALWAYS_INLINE bool AwaitIpcPeer(const IpcLaunch& launch, const Block& block, int meeting,
                                       int peer) {
  const uint8_t* flag = launch.boards[launch.rank] + IpcFlagOffset(meeting, block.index(), peer);
  for (uint32_t spins = 1; LoadFlag(flag) < launch.epoch; ++spins) {
    if (spins % kSpinsPerLook == 0 && LoadWord(launch.abort_word) != 0) return false;
    block.Pause();
  }
  return true;
}

// What this block has written is seen by the same block of every rank, and theirs by this one.
template <typename Block>
MYDIST_ALWAYS_INLINE bool MeetIpcPeers(const IpcLaunch& launch, const Block& block, int meeting) {
  const auto is_peer = [&](uint32_t thread) {
    return thread < static_cast<uint32_t>(launch.size) &&
           thread != static_cast<uint32_t>(launch.rank);
  };
  block.ForEachThread([&](uint32_t thread) {
    if (!is_peer(thread)) return;
    StoreFlag(launch.boards[thread] + IpcFlagOffset(meeting, block.index(), launch.rank),
              launch.epoch);
  });
  return block.All([&](uint32_t thread) {
    return !is_peer(thread) || AwaitIpcPeer(launch, block, meeting, static_cast<int>(thread));
  });
}

// Where a unit of rank `rank` lies.
MYDIST_ALWAYS_INLINE uint8_t* OnBoard(const IpcLaunch& launch, int rank, int64_t unit) {
  return launch.boards[rank] + IpcHalfOffset(launch.epoch) + unit * kFoldUnitBytes;
}

// work(index) for this thread's part of `count`.
template <typename Block, typename Work>
MYDIST_ALWAYS_INLINE void ForOwnPart(const Block& block, uint32_t thread, int64_t count,
                                     const Work& work) {
  const auto stride = static_cast<int64_t>(block.count()) * kIpcThreads;
  for (int64_t i = static_cast<int64_t>(block.index()) * kIpcThreads + thread; i < count;
       i += stride) {
    work(i);
  }
}

template <typename T, typename Block>
MYDIST_ALWAYS_INLINE void RunIpcBlock(const IpcLaunch& launch, const Block& block) {
  using Unit = FoldUnit<T>;
  const int64_t units = Unit::Count(launch.count);
  const auto read = [&](int64_t unit) {
    return Unit::Read(launch.input, launch.count, launch.is_aligned, unit);
  };
  const auto write = [&](int64_t unit, const typename Unit::Bytes& bytes) {
    Unit::Write(launch.output, launch.count, launch.is_aligned, unit, bytes);
  };
  const int slice_count = launch.in_two_shots ? launch.size : 1;
  const int64_t slice_units = (units + slice_count - 1) / slice_count;
  // Unit `index` of each slice, where there is one.
  const auto for_slices = [&](int64_t index, const auto& work) {
    for (int slice = 0; slice < slice_count; ++slice) {
      const int64_t unit = slice * slice_units + index;
      if (unit < units) work(slice, unit);
    }
  };
  block.ForEachThread([&](uint32_t thread) {
    ForOwnPart(block, thread, slice_units, [&](int64_t index) {
      for_slices(index,
                 [&](int, int64_t unit) { Store(OnBoard(launch, launch.rank, unit), read(unit)); });
    });
  });
  if (!MeetIpcPeers(launch, block, 0)) return;
  const int own_slice = launch.in_two_shots ? launch.rank : 0;
  block.ForEachThread([&](uint32_t thread) {
    ForOwnPart(block, thread, slice_units, [&](int64_t index) {
      const int64_t unit = own_slice * slice_units + index;
      if (unit >= units) return;
      const auto folded = Unit::Fold(launch.steps, [&](int rank) {
        return Load<typename Unit::Bytes>(OnBoard(launch, rank, unit));
      });
      if (launch.in_two_shots) {
        // Where our own contribution lay, which nobody else reads.
        Store(OnBoard(launch, launch.rank, unit), folded);
      } else {
        write(unit, folded);
      }
    });
  });
  if (!launch.in_two_shots || !MeetIpcPeers(launch, block, 1)) return;
  block.ForEachThread([&](uint32_t thread) {
    ForOwnPart(block, thread, slice_units, [&](int64_t index) {
      for_slices(index, [&](int slice, int64_t unit) {
        write(unit, Load<typename Unit::Bytes>(OnBoard(launch, slice, unit)));
      });
    });
  });
}

}  // namespace mydist::cuda
