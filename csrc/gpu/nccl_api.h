// NcclApi: the part of NCCL's binary interface that we call, as functions found at run time.
// Filled by NcclLibrary, or by a stand-in in tests. NCCL keeps this interface stable since 2.x, so
// that its header is not needed to build; where the header is found, a test compares the two.
// Functions marked "newer" are null where the library does not have them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mydist::nccl {

using Comm = struct ncclComm*;
using Window = struct ncclWindow_vidmem*;
using Stream = struct CUstream_st*;

struct UniqueId {
  char internal[128];
};

enum class Outcome : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class ElementType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// Those from CreatePreMulSum follow.
enum class ReductionKind : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum class ScalarResidence : int { kDevice = 0, kHostImmediate = 1 };

// The oldest form: NCCL reads no further than `version` and `size` say, and sets the rest itself.
struct CommConfig {
  static constexpr int kUndefined = -2147483647 - 1;
  static constexpr unsigned kVersion = 21800;

  size_t size = sizeof(CommConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

struct NcclApi {
  int version = 0;  // E.g. 23203 for 2.32.3.

  const char* (*GetErrorString)(Outcome) = nullptr;
  Outcome (*GetUniqueId)(UniqueId*) = nullptr;
  Outcome (*CommInitRankConfig)(Comm*, int size, UniqueId, int rank, CommConfig*) = nullptr;
  Outcome (*CommFinalize)(Comm) = nullptr;
  Outcome (*CommDestroy)(Comm) = nullptr;
  Outcome (*CommAbort)(Comm) = nullptr;
  Outcome (*CommGetAsyncError)(Comm, Outcome*) = nullptr;
  Outcome (*GroupStart)() = nullptr;
  Outcome (*GroupEnd)() = nullptr;
  Outcome (*AllReduce)(const void*, void*, size_t, ElementType, ReductionKind, Comm,
                       Stream) = nullptr;
  Outcome (*Reduce)(const void*, void*, size_t, ElementType, ReductionKind, int root, Comm,
                    Stream) = nullptr;
  Outcome (*Broadcast)(const void*, void*, size_t, ElementType, int root, Comm, Stream) = nullptr;
  Outcome (*AllGather)(const void*, void*, size_t send_count, ElementType, Comm, Stream) = nullptr;
  Outcome (*ReduceScatter)(const void*, void*, size_t receive_count, ElementType, ReductionKind,
                           Comm, Stream) = nullptr;
  Outcome (*Send)(const void*, size_t, ElementType, int peer, Comm, Stream) = nullptr;
  Outcome (*Recv)(void*, size_t, ElementType, int peer, Comm, Stream) = nullptr;
  Outcome (*RedOpCreatePreMulSum)(ReductionKind*, void* scalar, ElementType, ScalarResidence,
                                  Comm) = nullptr;
  Outcome (*RedOpDestroy)(ReductionKind, Comm) = nullptr;

  // Newer.
  const char* (*GetLastError)(Comm) = nullptr;                                         // 2.13
  Outcome (*CommSplit)(Comm, int color, int key, Comm*, CommConfig*) = nullptr;        // 2.18
  Outcome (*CommRegister)(Comm, void*, size_t, void** handle) = nullptr;               // 2.19
  Outcome (*CommDeregister)(Comm, void* handle) = nullptr;                             // 2.19
  Outcome (*CommWindowRegister)(Comm, void*, size_t, Window*, int flags) = nullptr;    // 2.27
  Outcome (*CommWindowDeregister)(Comm, Window) = nullptr;                             // 2.27
  Outcome (*CommShrink)(Comm, int* excluded, int, Comm*, CommConfig*, int) = nullptr;  // 2.27
  Outcome (*CommRevoke)(Comm, int flags) = nullptr;                                    // 2.29
};

}  // namespace mydist::nccl
