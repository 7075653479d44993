// Codecs that send few of the values. Their body: u32 indices, ascending, then float32 values.
// Where that would not be smaller than all values, it is those: only such a body has 4 × n bytes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/compress/gradient_codec.h"

namespace mydist {

// Of n values, of which `kept` are sent.
int64_t SparseBytes(int64_t count, int64_t kept);

// How many values a ratio keeps: ⌈ratio × n⌉ and at least 1.
int64_t KeptOf(double ratio, int64_t count);

class SparseCodec : public GradientCodec {
 public:
  EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const final;
  EncodedBody EncodeCorrected(std::span<const float> values, std::span<const float> state,
                              float factor, uint64_t key, uint8_t* body) const final;
  Status DecodeAdd(std::span<const uint8_t> body, float scale, std::span<float> out) const final;

 protected:
  // What is encoded, made in pieces that stay in the cache.
  struct Source {
    const SparseCodec& codec;
    std::span<const float> values;
    std::span<const float> state;  // Empty: the values as they are.
    float factor = 1;

    size_t size() const { return values.size(); }
    void Read(size_t begin, std::span<float> out) const;
  };

  virtual EncodedBody Write(const Source& source, uint8_t* body) const = 0;

  // A body of the `kept` values that are largest in magnitude; of equal ones the first. NaN is
  // larger than all.
  static EncodedBody WriteLargest(const Source& source, int64_t kept, uint8_t* body);
  // A body of all values of at least this magnitude, with NaN.
  static EncodedBody WriteFrom(const Source& source, float least, uint8_t* body);

  // Whether the body has all values. It is one that DecodeAdd takes.
  static bool IsDense(std::span<const uint8_t> body, int64_t count);
  // Its indices, if it has not all values. Bodies begin at multiples of 8.
  static std::span<const uint32_t> IndicesOf(std::span<const uint8_t> body);

 private:
  struct Found;
  static Found& MemoryOfThread();
  static void Find(const Source& source, uint32_t least, Found& found);
  static void Sample(const Source& source, Found& found);
  static uint32_t LikelyLeast(size_t kept, size_t count, double spare, Found& found);
  static void KeepLargest(size_t kept, Found& found);
  static EncodedBody WriteFound(const Found& found, uint8_t* body);
  static EncodedBody WriteAll(const Source& source, uint8_t* body);
};

}  // namespace mydist
