#include "kernels/compress/gradient_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/compress/rows.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr int64_t kHeaderBytes = 16;
constexpr uint8_t kNotFinite = 1;  // A flag.

// In memory as on the wire: u8 codec, u8 flags, u16 zero, u32 bytes of the body, u64 values.
struct Header {
  uint8_t codec;
  uint8_t flags;
  uint16_t zero;
  uint32_t body_bytes;
  uint64_t count;
};
static_assert(sizeof(Header) == kHeaderBytes);

const std::vector<CodecRow>& Rows() {
  static const std::vector<CodecRow> rows = {
      Int8Row(),     Fp8Row(),     OneBitRow(), SignSgdRow(),   QsgdRow(),
      TernGradRow(), NaturalRow(), TopKRow(),   ThresholdRow(), DgcRow()};
  return rows;
}

int64_t Padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

MYDIST_LOOP void CorrectLoop(const float* __restrict values, const float* __restrict state,
                             float factor, float* __restrict corrected, size_t count) {
  for (size_t i = 0; i < count; ++i) corrected[i] = values[i] + state[i] * factor;
}

MYDIST_LOOP void CorrectInPlaceLoop(const float* __restrict values, float* __restrict state,
                                    float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) state[i] = values[i] + state[i] * factor;
}

}  // namespace

void GradientCodec::Correct(std::span<const float> values, std::span<const float> state,
                            float factor, std::span<float> corrected) const {
  CorrectLoop(values.data(), state.data(), factor, corrected.data(), values.size());
}

EncodedBody GradientCodec::EncodeCorrected(std::span<const float> values,
                                           std::span<const float> state, float factor, uint64_t key,
                                           uint8_t* body) const {
  thread_local std::vector<float> memory;  // Used again: new memory costs more than the work on it.
  if (memory.size() < values.size()) memory.resize(values.size());
  const std::span<float> corrected(memory.data(), values.size());
  Correct(values, state, factor, corrected);
  return Encode(corrected, key, body);
}

Status GradientCodec::Keep(std::span<const float> values, std::span<float> state, float factor,
                           std::span<const uint8_t> body) const {
  CorrectInPlaceLoop(values.data(), state.data(), factor, values.size());
  return DecodeAdd(body, -1, state);
}

PayloadCodec::PayloadCodec(std::string name, uint8_t number,
                           std::shared_ptr<const GradientCodec> codec)
    : name_(std::move(name)), number_(number), codec_(std::move(codec)) {}

Result<PayloadCodec> PayloadCodec::Make(const std::string& name, const CodecOptions& options) {
  for (const CodecRow& row : Rows()) {
    if (row.name == name) return PayloadCodec(name, row.number, row.make(options));
  }
  return Status::InvalidArgument("there is no codec '" + name + "' in the core");
}

int64_t PayloadCodec::MaxBytes(int64_t count) const {
  return kHeaderBytes + Padded(codec_->MaxBytes(count));
}

EncodedBody PayloadCodec::Write(std::span<const float> values, std::span<const float> state,
                                float factor, uint64_t key, uint8_t* payload) const {
  uint8_t* const at = payload + kHeaderBytes;
  EncodedBody body = state.empty() ? codec_->Encode(values, key, at)
                                   : codec_->EncodeCorrected(values, state, factor, key, at);
  const Header header = {.codec = number_,
                         .flags = body.is_finite ? uint8_t{0} : kNotFinite,
                         .zero = 0,
                         .body_bytes = static_cast<uint32_t>(body.bytes),
                         .count = values.size()};
  std::memcpy(payload, &header, sizeof header);
  const int64_t padded = Padded(body.bytes);
  std::memset(payload + kHeaderBytes + body.bytes, 0, static_cast<size_t>(padded - body.bytes));
  body.bytes = kHeaderBytes + padded;
  return body;
}

Result<PayloadCodec::Payload> PayloadCodec::Read(std::span<const uint8_t> bytes,
                                                 int64_t count) const {
  const auto refuse = [&](const std::string& what) {
    return Status::Internal("a payload of the codec '" + name_ + "' is corrupt: " + what);
  };
  const auto have = static_cast<int64_t>(bytes.size());
  if (have < kHeaderBytes) return refuse("it ends within its header");
  Header header = {};
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto body = static_cast<int64_t>(header.body_bytes);
  if (header.codec != number_) return refuse("codec " + std::to_string(header.codec));
  if (header.flags > kNotFinite || header.zero != 0) return refuse("unknown flags");
  if (header.count != static_cast<uint64_t>(count)) {
    return refuse(std::to_string(header.count) + " values instead of " + std::to_string(count));
  }
  const int64_t most = codec_->MaxBytes(count);
  if (body > most || (codec_->IsFixed() && body < most) || kHeaderBytes + Padded(body) > have) {
    return refuse(std::to_string(body) + " bytes of " + std::to_string(have - kHeaderBytes));
  }
  return Payload{.body = bytes.subspan(kHeaderBytes, header.body_bytes),
                 .bytes = kHeaderBytes + Padded(body),
                 .is_finite = header.flags == 0};
}

uint64_t MixKeys(uint64_t a, uint64_t b) {
  uint64_t mixed = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

}  // namespace mydist
