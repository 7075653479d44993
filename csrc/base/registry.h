// Registry: rows that a setting names, in order of preference. Built-in rows come first, those of
// extensions after them. Thread-safe; rows are never removed.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace mydist {

// Whether a setting takes it as a value: up to 64 lowercase letters, digits, '_' and '-'.
inline bool IsValueName(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return text.size() <= kMaxBytes && std::all_of(text.begin(), text.end(), is_part);
}

// kInvalidArgument when no setting takes the name of a row; `what` it is: "algorithm".
inline Status CheckRowName(const std::string& what, const std::string& name) {
  if (IsValueName(name)) return Status::Ok();
  return Status::InvalidArgument(
      "the name of " + what + " '" + name +
      "' is not valid; expected up to 64 lowercase letters, digits, _ and -");
}

// "a, b or c".
inline std::string ListOfNames(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " or " : ", ";
    list += names[i];
  }
  return list;
}

// `Row` has a `name`.
template <typename Row>
class Registry {
 public:
  // `setting`: the variable whose values the names are.
  Registry(std::string setting, std::vector<Row> rows)
      : setting_(std::move(setting)), rows_(std::move(rows)) {}

  // kInvalidArgument when the name is empty, "auto" or taken.
  Status Add(Row row) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (row.name.empty() || row.name == "auto" || Position(row.name) != rows_.size()) {
      return Status::InvalidArgument(
          "'" + row.name + "' cannot be added to " + setting_ +
          ": expected a name that is not empty, not 'auto' and not in use");
    }
    rows_.push_back(std::move(row));
    return Status::Ok();
  }

  std::vector<Row> All() const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return rows_;
  }

  // kInvalidArgument, naming the setting and what it may be, when there is no such row.
  Result<Row> Find(const std::string& name) const MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (const size_t at = Position(name); at != rows_.size()) return rows_[at];
    std::vector<std::string> names = {"auto"};
    for (const Row& row : rows_) names.push_back(row.name);
    return Status::InvalidArgument(setting_ + "='" + name + "' is not valid: expected " +
                                   ListOfNames(names));
  }

 private:
  size_t Position(const std::string& name) const MYDIST_REQUIRES(mutex_) {
    const auto found =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.name == name; });
    return static_cast<size_t>(found - rows_.begin());
  }

  const std::string setting_;
  mutable Mutex mutex_;
  std::vector<Row> rows_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
