// WireFormat: what float32 travels as (compression); the numbers are part of the Python contract.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "torch/error_translation.h"

namespace mydist {

enum class WireFormat : int { kAsIs = 0, kFloat16 = 1, kBfloat16 = 2 };

// Throws StatusError with kInvalidArgument for numbers of no format.
inline WireFormat ToWireFormat(int number) {
  if (number < 0 || number > 2) {
    throw StatusError(Status::InvalidArgument("compression " + std::to_string(number) +
                                              " is unknown, expected 0, 1 or 2"));
  }
  return static_cast<WireFormat>(number);
}

// The engine casts into a buffer that stays: larger tensors are cast by torch, before.
inline constexpr int64_t kMostCastElements = int64_t{1} << 24;

// As what the engine reduces `dtype`: it can cast float32 on the way.
inline DataType NarrowTypeOf(WireFormat format, DataType dtype) {
  if (format == WireFormat::kAsIs || dtype != DataType::kFloat32) return dtype;
  return format == WireFormat::kFloat16 ? DataType::kFloat16 : DataType::kBfloat16;
}

}  // namespace mydist
