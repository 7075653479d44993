// Result<T>: a T, or the Status that says why there is none.
// Reading the value of a failed Result is a bug of ours and aborts.
#pragma once

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace mydist {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design.
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design.
    MYDIST_CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    MYDIST_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    MYDIST_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    MYDIST_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace mydist

#define MYDIST_CONCAT_INNER(a, b) a##b
#define MYDIST_CONCAT(a, b) MYDIST_CONCAT_INNER(a, b)

// MYDIST_ASSIGN_OR_RETURN(auto x, MakeX()): x is the value, or the function returns the error.
#define MYDIST_ASSIGN_OR_RETURN(declaration, expression) \
  MYDIST_ASSIGN_OR_RETURN_IMPL(MYDIST_CONCAT(result_, __LINE__), declaration, expression)
#define MYDIST_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return result.status();                           \
  declaration = std::move(result).value()
