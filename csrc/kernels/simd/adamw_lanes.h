// AdamW, lane by lane; part of kernels_*.cc only, once for each path. See kernels/adamw.h.
#pragma once

#include "kernels/simd/lanes.h"
#include "kernels/simd/simd_path.h"

namespace mydist::simd::MYDIST_SIMD_PATH {
namespace {

// Correctly rounded, as a square root of one float is.
MYDIST_ALWAYS_INLINE FloatVector Root(const FloatVector& squares) {
#if MYDIST_SIMD_BYTES == 64
  return BitsAs<FloatVector>(_mm512_maskz_sqrt_ps(0xffff, BitsAs<__m512>(squares)));
#elif MYDIST_SIMD_BYTES == 32
  return BitsAs<FloatVector>(_mm256_sqrt_ps(BitsAs<__m256>(squares)));
#elif defined(__SSE2__)
  return BitsAs<FloatVector>(_mm_sqrt_ps(BitsAs<__m128>(squares)));
#else
  FloatVector roots;
  for (int i = 0; i < kFloatCount; ++i) roots[i] = __builtin_sqrtf(squares[i]);
  return roots;
#endif
}

struct AdamwLanes {
  FloatVector parameters;
  FloatVector first;
  FloatVector second;
};

// The order of the operations is that of torch's single-tensor AdamW.
MYDIST_ALWAYS_INLINE void UpdateLanes(const AdamwCall& call, const FloatVector& gradients,
                                      AdamwLanes& lanes) {
  const FloatVector change = gradients - lanes.first;
  // torch interpolates from the nearer end.
  lanes.first = call.first_weight < 0.5F ? lanes.first + call.first_weight * change
                                         : gradients - change * (1.0F - call.first_weight);
  lanes.second = lanes.second * call.second_decay + call.second_weight * gradients * gradients;
  const FloatVector divisors = Root(lanes.second) / call.second_root + call.epsilon;
  lanes.parameters = lanes.parameters * call.decay + -call.step_size * lanes.first / divisors;
}

[[gnu::noinline]] void AdamwPart(const AdamwCall& call, int64_t offset, int64_t bytes) {
  const auto at = [offset](const float* memory) __attribute__((always_inline)) {
    return reinterpret_cast<char*>(const_cast<float*>(memory)) + offset;
  };
  AdamwLanes lanes = {LoadPart<FloatVector>(at(call.parameters), bytes),
                      LoadPart<FloatVector>(at(call.first), bytes),
                      LoadPart<FloatVector>(at(call.second), bytes)};
  UpdateLanes(call, LoadPart<FloatVector>(at(call.gradients), bytes), lanes);
  StorePart(at(call.parameters), lanes.parameters, bytes);
  StorePart(at(call.first), lanes.first, bytes);
  StorePart(at(call.second), lanes.second, bytes);
}

void AdamwAll(const AdamwCall& call) {
  // In registers: what the loop writes might otherwise be the call itself.
  const AdamwCall own = call;
  auto* const parameters = reinterpret_cast<char*>(own.parameters);
  auto* const first = reinterpret_cast<char*>(own.first);
  auto* const second = reinterpret_cast<char*>(own.second);
  const auto* const gradients = reinterpret_cast<const char*>(own.gradients);
  const int64_t bytes = own.count * 4;
  int64_t at = 0;
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) {
    AdamwLanes lanes = {LoadVector<FloatVector>(parameters + at),
                        LoadVector<FloatVector>(first + at), LoadVector<FloatVector>(second + at)};
    UpdateLanes(own, LoadVector<FloatVector>(gradients + at), lanes);
    StoreVector(parameters + at, lanes.parameters);
    StoreVector(first + at, lanes.first);
    StoreVector(second + at, lanes.second);
  }
  if (at < bytes) AdamwPart(own, at, bytes - at);
}

}  // namespace
}  // namespace mydist::simd::MYDIST_SIMD_PATH
