// Our declarations of NCCL say what its header says, where there is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gpu/nccl_api.h"

#ifdef MYDIST_HAS_NCCL_HEADER
#include <nccl.h>

#include <cstddef>
#include <type_traits>

namespace mydist::nccl {
namespace {

// Whether two types travel alike as an argument or a result.
template <typename Ours, typename Theirs>
constexpr bool SameType() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs) && std::is_trivially_copyable_v<Ours>;
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_enum_v<Ours> && sizeof(Ours) == sizeof(Theirs);
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<SameType<OurResult, TheirResult>() && (SameType<Ours, Theirs>() && ...)> {
};
#define EXPECT_SAME_CALL(name) \
  static_assert(SameCall<decltype(NcclApi::name), decltype(&nccl##name)>::value, #name)

EXPECT_SAME_CALL(GetErrorString);
EXPECT_SAME_CALL(GetUniqueId);
EXPECT_SAME_CALL(CommInitRankConfig);
EXPECT_SAME_CALL(CommFinalize);
EXPECT_SAME_CALL(CommDestroy);
EXPECT_SAME_CALL(CommAbort);
EXPECT_SAME_CALL(CommGetAsyncError);
EXPECT_SAME_CALL(GroupStart);
EXPECT_SAME_CALL(GroupEnd);
EXPECT_SAME_CALL(AllReduce);
EXPECT_SAME_CALL(Reduce);
EXPECT_SAME_CALL(Broadcast);
EXPECT_SAME_CALL(AllGather);
EXPECT_SAME_CALL(ReduceScatter);
EXPECT_SAME_CALL(Send);
EXPECT_SAME_CALL(Recv);
EXPECT_SAME_CALL(RedOpCreatePreMulSum);
EXPECT_SAME_CALL(RedOpDestroy);
EXPECT_SAME_CALL(GetLastError);
EXPECT_SAME_CALL(CommSplit);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
EXPECT_SAME_CALL(CommRegister);
EXPECT_SAME_CALL(CommDeregister);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
EXPECT_SAME_CALL(CommWindowRegister);
EXPECT_SAME_CALL(CommWindowDeregister);
EXPECT_SAME_CALL(CommShrink);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 2)
EXPECT_SAME_CALL(CommRevoke);
#endif

template <typename Ours, typename Theirs>
constexpr bool Equal(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(Equal(Outcome::kSuccess, ncclSuccess));
static_assert(Equal(Outcome::kUnhandledCudaError, ncclUnhandledCudaError));
static_assert(Equal(Outcome::kSystemError, ncclSystemError));
static_assert(Equal(Outcome::kInternalError, ncclInternalError));
static_assert(Equal(Outcome::kInvalidArgument, ncclInvalidArgument));
static_assert(Equal(Outcome::kInvalidUsage, ncclInvalidUsage));
static_assert(Equal(Outcome::kRemoteError, ncclRemoteError));
static_assert(Equal(Outcome::kInProgress, ncclInProgress));
static_assert(Equal(ElementType::kInt8, ncclInt8));
static_assert(Equal(ElementType::kUint8, ncclUint8));
static_assert(Equal(ElementType::kInt32, ncclInt32));
static_assert(Equal(ElementType::kUint32, ncclUint32));
static_assert(Equal(ElementType::kInt64, ncclInt64));
static_assert(Equal(ElementType::kUint64, ncclUint64));
static_assert(Equal(ElementType::kFloat16, ncclFloat16));
static_assert(Equal(ElementType::kFloat32, ncclFloat32));
static_assert(Equal(ElementType::kFloat64, ncclFloat64));
static_assert(Equal(ElementType::kBfloat16, ncclBfloat16));
static_assert(Equal(ReductionKind::kSum, ncclSum));
static_assert(Equal(ReductionKind::kProd, ncclProd));
static_assert(Equal(ReductionKind::kMax, ncclMax));
static_assert(Equal(ReductionKind::kMin, ncclMin));
static_assert(Equal(ReductionKind::kAvg, ncclAvg));
static_assert(Equal(ScalarResidence::kDevice, ncclScalarDevice));
static_assert(Equal(ScalarResidence::kHostImmediate, ncclScalarHostImmediate));

#define EXPECT_SAME_PLACE(ours, theirs)                                        \
  static_assert(offsetof(CommConfig, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(sizeof(CommConfig::ours) == sizeof(ncclConfig_t::theirs))
EXPECT_SAME_PLACE(size, size);
EXPECT_SAME_PLACE(magic, magic);
EXPECT_SAME_PLACE(version, version);
EXPECT_SAME_PLACE(blocking, blocking);
EXPECT_SAME_PLACE(cga_cluster_size, cgaClusterSize);
EXPECT_SAME_PLACE(min_ctas, minCTAs);
EXPECT_SAME_PLACE(max_ctas, maxCTAs);
EXPECT_SAME_PLACE(net_name, netName);
EXPECT_SAME_PLACE(split_share, splitShare);
static_assert(sizeof(CommConfig) <= sizeof(ncclConfig_t));
static_assert(CommConfig::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(CommConfig::kVersion == NCCL_VERSION(2, 18, 0));

TEST(NcclHeader, AFreshConfigurationIsTheirs) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const CommConfig ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
  EXPECT_EQ(ours.net_name, theirs.netName);
}

}  // namespace
}  // namespace mydist::nccl

#else

TEST(NcclHeader, AFreshConfigurationIsTheirs) {
  const std::string why =
      "no nccl.h was found when this was configured (MYDIST_NCCL_INCLUDE_DIR); where there is a "
      "CUDA compiler, scripts/setup.sh ci fetches it";
  const char* const required = getenv("TEST_REQUIRED");
  if (required != nullptr) {
    ASSERT_THAT(required, ::testing::Not(::testing::HasSubstr("nccl_header"))) << why;
  }
  GTEST_SKIP() << why;
}

#endif
