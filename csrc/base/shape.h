// Shape: the dimensions of a dense tensor, in elements, row-major.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"

namespace mydist {

class MYDIST_EXPORT Shape {
 public:
  Shape() = default;  // 0-d: one element.
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  const std::vector<int64_t>& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int index) const { return dims_[static_cast<size_t>(index)]; }

  // Product of all dimensions; nothing when one is negative or the product of those that are not
  // zero exceeds 2^62.
  std::optional<int64_t> ElementCount() const;
  // Elements in one row: the product of all dimensions but the first. 1 for 0-d and 1-d.
  // Only for shapes whose ElementCount is known: a peer's shape must have passed that first.
  int64_t RowElementCount() const;
  // The same shape with another first dimension; a 0-d shape becomes 1-d.
  Shape WithFirstDim(int64_t first_dim) const;
  // Whether all dimensions but the first are equal, and so is the number of dimensions.
  bool SameRowAs(const Shape& other) const;

  std::string ToString() const;  // "[2, 3]"; "[]" for 0-d.
  bool operator==(const Shape&) const = default;

 private:
  std::vector<int64_t> dims_;
};

}  // namespace mydist
