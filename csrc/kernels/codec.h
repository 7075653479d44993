// Codec: how a block of elements is loaded for reducing, and stored when it is reduced. Private to
// kernels/. 16-bit floats widen to float32 and are rounded once, when stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/conversion.h"
#include "kernels/element.h"

namespace mydist {

// Most types are reduced as they are.
template <typename T>
struct Codec {
  using Wide = T;

  // `count` elements times prescale, in `block` or, when they need no work, in `source` itself.
  static const T* Load(const T* source, T* block, int64_t count, double prescale) {
    if (prescale == 1.0) return source;
    ScaleElements(source, block, count, {prescale, 1});
    return block;
  }

  // Where the last step of the fold goes: no need for a detour.
  static T* LastTarget(T* output, T*) { return output; }

  // `folded` may be `output`.
  static void Store(const T* folded, T*, T* output, int64_t count, const Factor& factor) {
    if (factor.IsOne()) {
      CopyBytes(output, folded, count * static_cast<int64_t>(sizeof(T)));
    } else {
      ScaleElements(folded, output, count, factor);
    }
  }
};

// 16-bit floats fold in float32.
template <typename T>
struct WideningCodec {
  using Wide = float;

  static const float* Load(const T* source, float* block, int64_t count, double prescale) {
    if (count == 0) return block;  // `source` may be null.
    if constexpr (std::is_same_v<T, Half>) {
      WidenHalf(&source->bits, block, count);
    } else {
      WidenBfloat16(&source->bits, block, count);
    }
    if (prescale != 1.0) ScaleElements(block, block, count, {prescale, 1});
    return block;
  }

  static float* LastTarget(T*, float* block) { return block; }

  // `block` is room for `count` elements; it may be `folded`.
  static void Store(const float* folded, float* block, T* output, int64_t count,
                    const Factor& factor) {
    if (count == 0) return;  // `output` may be null.
    if (!factor.IsOne()) {
      ScaleElements(folded, block, count, factor);
      folded = block;
    }
    if constexpr (std::is_same_v<T, Half>) {
      NarrowHalf(folded, &output->bits, count);
    } else {
      NarrowBfloat16(folded, &output->bits, count);
    }
  }
};

template <>
struct Codec<Half> : WideningCodec<Half> {};
template <>
struct Codec<Bfloat16> : WideningCodec<Bfloat16> {};

}  // namespace mydist
