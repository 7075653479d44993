// Payloads of codecs: those of a peer, and what becomes of any values.
#include <cstring>
#include <string>

#include "kernels/compress/gradient_codec.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

struct Chosen {
  std::string name;
  CodecOptions options;
};

const std::vector<Chosen>& Codecs() {
  static const auto* const kCodecs = new std::vector<Chosen>{
      {"int8", {{"block", 48}}},
      {"topk", {{"ratio", 0.1}}},
      {"topk", {{"ratio", 1}}},
      {"threshold", {{"value", 1.5}}},
      {"dgc", {{"ratio", 0.1}, {"momentum", 0.9}}},
      {"fp8", {{"fraction", 3}, {"block", 48}}},
      {"fp8", {{"fraction", 2}, {"block", 48}}},
      {"onebit", {}},
      {"signsgd", {}},
      {"qsgd", {{"levels", 3}, {"bucket", 48}}},
      {"qsgd", {{"levels", 127}, {"bucket", 512}}},
      {"terngrad", {}},
      {"natural", {}},
  };
  return *kCodecs;
}

PayloadCodec CodecOf(uint8_t number) {
  const Chosen& chosen = Codecs()[number % Codecs().size()];
  Result<PayloadCodec> codec = PayloadCodec::Make(chosen.name, chosen.options);
  FUZZ_EXPECT(codec.ok());
  return *codec;
}

// The codec, the number of values in two bytes, and a payload.
void Payload(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const PayloadCodec codec = CodecOf(input.Byte());
  const size_t low = input.Byte();
  const size_t count = 1 + (low | size_t{input.Byte()} << 8);
  const std::span<const uint8_t> rest = input.Rest();
  const Bytes memory(rest.begin(), rest.end());  // Of a tensor, which begins at a multiple of 8.
  const auto payload = codec.Read(memory, static_cast<int64_t>(count));
  if (!payload.ok()) return;
  FUZZ_EXPECT(payload->bytes % 8 == 0);
  FUZZ_EXPECT(payload->bytes <= static_cast<int64_t>(memory.size()));
  FUZZ_EXPECT(payload->bytes <= codec.MaxBytes(static_cast<int64_t>(count)));
  std::vector<float> out(count);
  const Status added = codec.codec().DecodeAdd(payload->body, 0.5f, out);
  // One that is refused has changed nothing.
  FUZZ_EXPECT(added.ok() || out == std::vector<float>(count));
}

// The codec, and values.
void Values(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const PayloadCodec codec = CodecOf(input.Byte());
  const std::span<const uint8_t> rest = input.Rest();
  std::vector<float> values(rest.size() / sizeof(float));
  if (values.empty()) return;
  std::memcpy(values.data(), rest.data(), values.size() * sizeof(float));
  const auto count = static_cast<int64_t>(values.size());
  std::vector<float> state(values.size() * static_cast<size_t>(codec.codec().StateFloats()), 0.25f);
  Bytes memory(static_cast<size_t>(codec.MaxBytes(count)));
  const EncodedBody written = codec.Write(values, state, 2, 7, memory.data());
  FUZZ_EXPECT(written.bytes <= codec.MaxBytes(count));
  if (codec.codec().IsFixed()) FUZZ_EXPECT(written.bytes == codec.MaxBytes(count));
  memory.resize(static_cast<size_t>(written.bytes));
  const auto payload = codec.Read(memory, count);
  FUZZ_EXPECT(payload.ok());
  FUZZ_EXPECT(payload->is_finite == written.is_finite);
  FUZZ_EXPECT(codec.codec().DecodeAdd(payload->body, 1, values).ok());
  if (!state.empty()) FUZZ_EXPECT(codec.codec().Keep(values, state, 2, payload->body).ok());
}

Bytes ValueBytes(uint8_t codec, const std::vector<float>& values) {
  Bytes bytes(1 + values.size() * sizeof(float), codec);
  std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(float));
  return bytes;
}

std::vector<float> SomeValues() {
  std::vector<float> values;
  for (int i = 0; i < 100; ++i) values.push_back(static_cast<float>(i % 7 - 3) * 0.75f);
  return values;
}

std::vector<Bytes> ValuesSeeds() {
  std::vector<Bytes> seeds;
  for (uint8_t number = 0; number < Codecs().size(); ++number) {
    seeds.push_back(ValueBytes(number, SomeValues()));
    seeds.push_back(ValueBytes(number, {0, -0.0f, 1e-40f, 3e38f, -1}));
  }
  return seeds;
}

std::vector<Bytes> PayloadSeeds() {
  std::vector<Bytes> seeds;
  const std::vector<float> values = SomeValues();
  for (uint8_t number = 0; number < Codecs().size(); ++number) {
    const PayloadCodec codec = CodecOf(number);
    Bytes memory(static_cast<size_t>(codec.MaxBytes(100)));
    const EncodedBody written = codec.Write(values, {}, 1, 7, memory.data());
    Bytes seed = {number, 99, 0};
    seed.insert(seed.end(), memory.begin(), memory.begin() + written.bytes);
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace

std::vector<Target> KernelTargets() {
  return {{"gradient_payload", Payload, PayloadSeeds}, {"gradient_values", Values, ValuesSeeds}};
}

}  // namespace mydist::fuzz
