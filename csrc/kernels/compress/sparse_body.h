// The body of codecs that send few of the values: u32 indices, ascending, then their float32
// values. Where that would not be smaller than all values, it is those: only such a body has 4 × n
// bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/compress/gradient_codec.h"

namespace mydist {

// Of n values, of which `kept` are sent.
int64_t SparseBytes(int64_t count, int64_t kept);

// How many values a ratio keeps: ⌈ratio × n⌉ and at least 1.
int64_t KeptOf(double ratio, int64_t count);

// The indices of the `kept` values that are largest in magnitude, ascending; of equal ones the
// first. NaN is larger than all. The memory is this thread's, until its next call. 1 ≤ kept < n.
std::span<const uint32_t> LargestOf(std::span<const float> values, int64_t kept);

// The indices of all values of at least this magnitude, ascending, with NaN; memory as above.
std::span<const uint32_t> AtLeast(std::span<const float> values, float least);

// Writes a body with the values at `indices`, or with all where that takes as few bytes.
EncodedBody WriteSparse(std::span<const float> values, std::span<const uint32_t> indices,
                        uint8_t* body);
// Writes a body of all values.
EncodedBody WriteDense(std::span<const float> values, uint8_t* body);

// The body of the `kept` values that are largest in magnitude.
EncodedBody WriteLargest(std::span<const float> values, int64_t kept, uint8_t* body);

// See GradientCodec::DecodeAdd. `out` stays as it is when the body is none of so many values.
Status AddSparse(std::span<const uint8_t> body, float scale, std::span<float> out);

// Whether the body has all values. It is one that AddSparse takes.
bool IsDense(std::span<const uint8_t> body, int64_t count);
// Its indices, if it has not all values. Bodies begin at multiples of 8.
std::span<const uint32_t> IndicesOf(std::span<const uint8_t> body);

}  // namespace mydist
