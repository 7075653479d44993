// FoldOrderReference: the bits that a reduction of floating-point numbers must have: the ranks of
// each host in rank order, then host by host, each element on its own and in the plainest way.
// Independent of the kernels, but for how float32 is rounded to 16 bits.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "conformance/reduction_reference.h"
#include "kernels/element.h"

namespace mydist::testing {

// `W`: what is folded in. A real number has no second part.
template <typename W>
class FoldOrderReference {
  using Parts = std::array<W, 2>;

 public:
  explicit FoldOrderReference(const Reduction& resolved) : reduction_(resolved) {}

  // `members`: the ranks of each host; `inputs`: one per rank.
  Elements Fold(const std::vector<std::vector<int>>& members,
                const std::vector<Elements>& inputs) const {
    Elements result(reduction_.dtype, inputs[0].count());
    for (int64_t i = 0; i < result.count(); ++i) {
      std::optional<Parts> folded;
      for (const std::vector<int>& host : members) {
        std::optional<Parts> of_host;
        for (const int rank : host) {
          const std::complex<double> number = NumberAt(inputs[static_cast<size_t>(rank)], i);
          const Parts value = {static_cast<W>(number.real()), static_cast<W>(number.imag())};
          Add(of_host, Scaled(value, reduction_.prescale, 1));
        }
        Add(folded, *of_host);
      }
      Store(Scaled(*folded, reduction_.postscale, reduction_.divisor), result, i);
    }
    return result;
  }

 private:
  static Parts Scaled(Parts parts, double multiplier, int64_t divided_by) {
    const auto divisor = static_cast<double>(divided_by);
    for (W& part : parts) {
      const bool is_double = sizeof(W) == sizeof(double);
      part =
          static_cast<W>(is_double ? part * multiplier / divisor : part * (multiplier / divisor));
    }
    return parts;
  }

  void Add(std::optional<Parts>& folded, const Parts& next) const {
    if (!folded) {
      folded = next;
      return;
    }
    auto& [a, b] = *folded;
    const auto [c, d] = next;
    switch (reduction_.op) {
      case ReduceOp::kMin:
        a = c < a || c != c ? c : a;
        return;
      case ReduceOp::kMax:
        a = c > a || c != c ? c : a;
        return;
      case ReduceOp::kProduct:
        if (IsComplex(reduction_.dtype)) {
          folded = Parts{a * c - b * d, a * d + b * c};
        } else {
          a *= c;
        }
        return;
      default:
        a += c;
        b += d;
    }
  }

  void Store(Parts parts, Elements& result, int64_t i) const {
    for (W& part : parts) {
      if (part != part) part = std::numeric_limits<W>::quiet_NaN();
    }
    switch (reduction_.dtype) {
      case DataType::kFloat16:
        return Put(result, i, FloatToHalf(static_cast<float>(parts[0])));
      case DataType::kBfloat16:
        return Put(result, i, FloatToBfloat16(static_cast<float>(parts[0])));
      default:
        break;
    }
    if (!IsComplex(reduction_.dtype)) return Put(result, i, parts[0]);
    Put(result, 2 * i, parts[0]);
    Put(result, 2 * i + 1, parts[1]);
  }

  const Reduction reduction_;
};

// `resolved` is of floating-point numbers.
inline Elements FoldedByHosts(const Reduction& resolved,
                              const std::vector<std::vector<int>>& members,
                              const std::vector<Elements>& inputs) {
  if (resolved.dtype == DataType::kFloat64 || resolved.dtype == DataType::kComplex128) {
    return FoldOrderReference<double>(resolved).Fold(members, inputs);
  }
  return FoldOrderReference<float>(resolved).Fold(members, inputs);
}

}  // namespace mydist::testing
