#include "algorithms/device/lone_collectives.h"

#include <numeric>

namespace mydist {
namespace {

Status NoPeer(int peer) {
  return Status::Internal("one rank alone has no peer " + std::to_string(peer));
}

}  // namespace

bool LoneCollectives::Supports(const BatchTraits& traits) const {
  const Reduction reduction{.dtype = traits.dtype, .op = traits.reduce_op};
  return traits.device >= 0 && (!Reduces(traits.op) || reduction.ValidateFor(traits.op).ok());
}

Status LoneCollectives::Move(const void* input, void* output, int64_t bytes) {
  if (input == output || bytes == 0) return Status::Ok();
  return seat_.device->Copy(output, input, bytes, seat_.stream);
}

// The factor before the fold and the one after it round one after the other; between the two
// 16-bit floats are as wide as while they are folded.
Status LoneCollectives::Scale(const void* input, void* output, int64_t count,
                              const Reduction& reduction) {
  const DataType dtype = reduction.dtype;
  const Factor before{.multiplier = reduction.prescale};
  const Factor after{.multiplier = reduction.postscale, .divisor = reduction.divisor};
  if (count == 0) return Status::Ok();
  if (before.IsOne() && after.IsOne()) return Move(input, output, count * SizeOf(dtype));
  const auto convert = [&](const void* from, void* to, const Conversion& conversion) {
    const ConvertSegment segment{from, to, count};
    return seat_.device->Convert({&segment, 1}, conversion, seat_.stream);
  };
  if (before.IsOne() || after.IsOne()) {
    return convert(input, output, {dtype, dtype, before.IsOne() ? after : before});
  }
  const bool is_half = dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
  const DataType wide = is_half ? DataType::kFloat32 : dtype;
  void* between = output;
  if (is_half) {
    MYDIST_ASSIGN_OR_RETURN(between, scratch_.Reserve(count * SizeOf(wide)));
  }
  MYDIST_RETURN_IF_ERROR(convert(input, between, {dtype, wide, before}));
  return convert(between, output, {wide, dtype, after});
}

Status LoneCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  return Scale(data, data, count, reduction);
}

Status LoneCollectives::Allgather(const void* input, void* output,
                                  std::span<const int64_t> byte_counts) {
  return Move(input, output, byte_counts[0]);
}

Status LoneCollectives::Reduce(const void* input, void* output, int64_t count,
                               const Reduction& reduction, int /*root*/) {
  return Scale(input, output, count, reduction);
}

Status LoneCollectives::AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                        const Reduction& reduction) {
  return Scale(data, data, std::accumulate(counts.begin(), counts.end(), int64_t{0}), reduction);
}

Status LoneCollectives::Gather(const void* input, void* output,
                               std::span<const int64_t> byte_counts, int /*root*/) {
  return Move(input, output, byte_counts[0]);
}

Status LoneCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                                void* output, int /*root*/) {
  return Move(input, output, byte_counts[0]);
}

Status LoneCollectives::Send(const void* /*data*/, int64_t /*bytes*/, int peer) {
  return NoPeer(peer);
}

Status LoneCollectives::Receive(void* /*data*/, int64_t /*bytes*/, int peer) {
  return NoPeer(peer);
}

Status LoneCollectives::Broadcast(void* /*data*/, int64_t /*bytes*/, int /*root*/) {
  return Status::Ok();
}

Status LoneCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                 void* output, std::span<const int64_t> /*receive_bytes*/) {
  return Move(input, output, send_bytes[0]);
}

Status LoneCollectives::Reducescatter(const void* input, void* output,
                                      std::span<const int64_t> counts, const Reduction& reduction) {
  return Scale(input, output, counts[0], reduction);
}

}  // namespace mydist
