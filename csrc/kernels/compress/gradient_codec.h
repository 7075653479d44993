// GradientCodec: float32 values as fewer bytes, and back. Pure and thread-safe; knows no rank.
// A payload is a header of 16 bytes and the codec's body, padded to a multiple of 8. Its numbers
// are little-endian. Decoding checks every length, so bytes of a peer never lead outside.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

// What Encode has written.
struct EncodedBody {
  int64_t bytes = 0;
  bool is_finite = true;  // False: some values were NaN or infinite; they decode to NaN.
};

class MYDIST_EXPORT GradientCodec {
 public:
  virtual ~GradientCodec() = default;

  // Ranges of a tensor are cut at multiples of so many values.
  virtual int64_t Block() const { return 1; }
  // Whether each body of `count` values has MaxBytes(count).
  virtual bool IsFixed() const { return true; }
  virtual int64_t MaxBytes(int64_t count) const = 0;
  // `body` has room for MaxBytes. The same values and key give the same bytes on every CPU.
  virtual EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const = 0;
  // out += decoded × scale. A body of a fixed codec has MaxBytes. kInternal if this one is not what
  // Encode writes for so many values.
  virtual Status DecodeAdd(std::span<const uint8_t> body, float scale,
                           std::span<float> out) const = 0;

  // State that each value has from step to step; 1: its residual, what was not sent so far.
  virtual int64_t StateFloats() const { return 0; }
  // corrected = what is encoded in place of the values. `factor` is for the state, whose unit may
  // have changed since.
  virtual void Correct(std::span<const float> values, std::span<const float> state, float factor,
                       std::span<float> corrected) const;
  // Encodes Correct(values, state, factor). Some codecs need no memory for all of that.
  virtual EncodedBody EncodeCorrected(std::span<const float> values, std::span<const float> state,
                                      float factor, uint64_t key, uint8_t* body) const;
  // The state after `body` was sent for Correct(values, state, factor).
  virtual Status Keep(std::span<const float> values, std::span<float> state, float factor,
                      std::span<const uint8_t> body) const;
};

using CodecOptions = std::map<std::string, double>;

struct CodecRow {
  std::string name;
  uint8_t number;  // In headers.
  // The options of the codec, all of them, checked by the caller.
  std::function<std::unique_ptr<GradientCodec>(const CodecOptions& options)> make;
};

// One codec by its name, with what payloads need around it.
class MYDIST_EXPORT PayloadCodec {
 public:
  // kInvalidArgument when there is no such codec.
  static Result<PayloadCodec> Make(const std::string& name, const CodecOptions& options);

  const GradientCodec& codec() const { return *codec_; }
  int64_t MaxBytes(int64_t count) const;
  // Returns the bytes of the payload. A payload of a fixed codec has MaxBytes. An empty `state` is
  // that of a codec without one.
  EncodedBody Write(std::span<const float> values, std::span<const float> state, float factor,
                    uint64_t key, uint8_t* payload) const;

  struct Payload {
    std::span<const uint8_t> body;
    int64_t bytes = 0;  // Of header, body and padding.
    bool is_finite = true;
  };
  // The first payload in `bytes`, which has `count` values. kInternal if it is another one.
  Result<Payload> Read(std::span<const uint8_t> bytes, int64_t count) const;

 private:
  PayloadCodec(std::string name, uint8_t number, std::shared_ptr<const GradientCodec> codec);

  std::string name_;
  uint8_t number_;
  std::shared_ptr<const GradientCodec> codec_;
};

// One number of both, spread over all bits; for the keys of Encode.
MYDIST_EXPORT uint64_t MixKeys(uint64_t a, uint64_t b);

}  // namespace mydist
