#include "kernels/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "kernels/codec.h"
#include "kernels/element.h"
#include "kernels/simd/simd_path.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace mydist {
namespace {

thread_local int64_t overflows_of_thread = 0;

// The CPU notes that a number has overflowed, until the note is taken. So a loop over all numbers
// need not look for it.
#if defined(__x86_64__)
bool TakeOverflowNote() {
  const unsigned int state = _mm_getcsr();
  if ((state & _MM_EXCEPT_OVERFLOW) == 0) return false;
  _mm_setcsr(state & ~static_cast<unsigned int>(_MM_EXCEPT_OVERFLOW));
  return true;
}
void PutOverflowNote() { _mm_setcsr(_mm_getcsr() | _MM_EXCEPT_OVERFLOW); }
#else
bool TakeOverflowNote() {
  if (std::fetestexcept(FE_OVERFLOW) == 0) return false;
  std::feclearexcept(FE_OVERFLOW);
  return true;
}
void PutOverflowNote() { std::feraiseexcept(FE_OVERFLOW); }
#endif

void FoldAndNoteOverflow(const simd::FoldCall& call) {
  if (!IsFloatingPoint(call.dtype) && !IsComplex(call.dtype)) {
    return simd::CurrentKernels().fold(call);
  }
  const OverflowWatch watch;
  simd::CurrentKernels().fold(call);
}

template <typename T>
using WideOf = typename Codec<T>::Wide;

template <typename T>
T Narrowed(WideOf<T> wide) {
  T narrow;
  Codec<T>::Store(&wide, &wide, &narrow, 1, {});
  return narrow;
}

// The element whose scaled value lies above (below) that of all others.
template <typename Wide>
Wide Extreme(bool highest) {
  using Limits = std::numeric_limits<Wide>;
  if constexpr (Limits::has_infinity) {
    return highest ? Limits::infinity() : -Limits::infinity();
  } else {
    return highest ? Limits::max() : Limits::min();
  }
}

// NeutralOf(T{}, …): T only chooses the overload.
template <typename T>
T NeutralOf(T, const Reduction& reduction) {
  using Wide = WideOf<T>;
  const bool upside_down = std::signbit(reduction.prescale);
  switch (reduction.op) {
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (reduction.prescale == 0.0) return Narrowed<T>(Wide{0});  // Infinity × 0 is NaN.
      return Narrowed<T>(Extreme<Wide>((reduction.op == ReduceOp::kMin) != upside_down));
    case ReduceOp::kProduct:
      return Narrowed<T>(Wide{1});
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kAdasum:
      break;
  }
  if constexpr (std::is_integral_v<T>) return T{0};
  return Narrowed<T>(upside_down ? Wide{0} : -Wide{0});
}

template <typename T>
Complex<T> NeutralOf(Complex<T>, const Reduction& reduction) {
  const T real = NeutralOf(T{}, reduction);
  return {real, reduction.op == ReduceOp::kProduct ? T{0} : real};
}

Bool NeutralOf(Bool, const Reduction& reduction) {
  const bool is_and = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kProduct;
  return {static_cast<uint8_t>(is_and ? 1 : 0)};
}

}  // namespace

Reduction Reduction::Resolved(int size) const {
  Reduction resolved = *this;
  if (op == ReduceOp::kAverage) {
    resolved.op = ReduceOp::kSum;
    resolved.divisor = divisor * size;
  }
  return resolved;
}

Status Reduction::Validate() const {
  const std::string dtype_name(DataTypeName(dtype));
  if (!HasMeaning(op, dtype)) {
    return Status::InvalidArgument("reduce op " + std::string(ReduceOpName(op)) +
                                   " has no meaning for dtype " + dtype_name +
                                   "; use another op or convert the tensor first");
  }
  if (dtype == DataType::kBool && (ScalesBefore() || ScalesAfter())) {
    return Status::InvalidArgument(
        "a bool tensor cannot be scaled: got prescale " + std::to_string(prescale) +
        " and postscale " + std::to_string(postscale) +
        ", expected 1 for both; leave the factors out, or convert the tensor first");
  }
  return Status::Ok();
}

Status Reduction::ValidateFor(OpKind operation) const {
  if (op == ReduceOp::kAdasum && operation != OpKind::kAllreduce) {
    return Status::InvalidArgument("reduce op Adasum works with allreduce only, got " +
                                   std::string(OpKindName(operation)) +
                                   "; call allreduce, or use Average or Sum");
  }
  return Validate();
}

void ReduceInRankOrder(std::span<const void* const> sources, std::span<void* const> outputs,
                       int64_t count, const Reduction& reduction) {
  MYDIST_CHECK(!sources.empty());
  MYDIST_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  MYDIST_CHECK(HasMeaning(reduction.op, reduction.dtype));
  if (count == 0) return;
  simd::FoldCall call = {.sources = sources.data(),
                         .source_count = sources.size(),
                         .outputs = outputs.data(),
                         .output_count = outputs.size(),
                         .count = count,
                         .dtype = reduction.dtype,
                         .op = reduction.op,
                         .prescale = reduction.prescale,
                         .postscale = reduction.postscale,
                         .divisor = reduction.divisor};
  if (sources.size() == 1 && !reduction.ScalesBefore() && !reduction.ScalesAfter()) {
    call.count = count * SizeOf(reduction.dtype);
    call.dtype = DataType::kUint8;
  }
  FoldAndNoteOverflow(call);
}

int64_t OverflowsOfThread() { return overflows_of_thread; }

OverflowWatch::OverflowWatch() : is_of_program_(TakeOverflowNote()) {}

OverflowWatch::~OverflowWatch() {
  if (TakeOverflowNote()) ++overflows_of_thread;
  if (is_of_program_) PutOverflowNote();
}

void ReduceInRankOrder(std::span<const void* const> sources, void* output, int64_t count,
                       const Reduction& reduction) {
  ReduceInRankOrder(sources, std::span(&output, 1), count, reduction);
}

void FillNeutral(void* data, int64_t count, const Reduction& reduction) {
  VisitElement(reduction.dtype, [&](auto element) {
    const auto neutral = NeutralOf(element, reduction);
    std::fill_n(static_cast<decltype(element)*>(data), count, neutral);
  });
}

}  // namespace mydist
