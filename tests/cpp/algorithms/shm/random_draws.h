// What the suites of random calls draw.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <random>

#include "kernels/element.h"

namespace mydist::shm {

inline int64_t Draw(std::mt19937& random, int64_t below) {
  return static_cast<int64_t>(random() % static_cast<uint32_t>(below));
}

template <typename Values>
auto OneOf(std::mt19937& random, const Values& values) {
  return std::data(values)[Draw(random, static_cast<int64_t>(std::size(values)))];
}

inline DataType DrawType(std::mt19937& random) {
  constexpr std::array kTypes = {DataType::kFloat32, DataType::kBfloat16, DataType::kInt64,
                                 DataType::kUint8};
  return OneOf(random, kTypes);
}

}  // namespace mydist::shm
