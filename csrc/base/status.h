// Status: the outcome of everything that can fail outside csrc/torch.
// A value type: cheap when OK (no allocation), immutable once made, safe to copy between threads.
// The message is written for the user: what was got, what was expected, what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"

namespace mydist {

// What a rank has completed last. All empty but `rank`: nothing so far.
struct RankProgress {
  int rank = 0;
  std::string operation;  // Such as "allreduce".
  std::string tensor;     // The beginning of its name, where that is long.
  int64_t number = 0;     // Which one of its process set, from 1; 0: not all of the set execute it.
  double age = 0;         // Seconds since it was known; later the rank may have come further.
  uint64_t turn = 0;      // Of what this rank has completed: the later news have more.
  double waited = 0;      // Seconds that it has waited for other ranks in all, when it told last.

  bool operator==(const RankProgress&) const = default;
};
using ProgressList = std::shared_ptr<const std::vector<RankProgress>>;

// Failure: what is known of an error besides its code and its words, as data: what code decides by,
// peers and the launcher are told, and Python's exceptions carry. No code reads a message.
// Unknown fields are empty, or 0.
struct Failure {
  std::string operation;   // Such as "allreduce".
  std::string tensor;      // The one it is about, also where others fail with it.
  std::string phase;       // "start", "negotiate", "reduce" or "shut down".
  std::vector<int> ranks;  // Whom it is blamed on.
  std::string host;        // Theirs, where it is one.
  int64_t pid = 0;
  // Theirs, as many as there are ranks, in the same order, each as far as it is known; or empty.
  std::vector<std::string> hosts;
  std::vector<int64_t> pids;
  int signal = 0;       // That ended the rank.
  std::string finding;  // About these ranks: "dead", "silent" (they give no sign of life), "late".
  ProgressList progress;  // What each rank of the job has completed last, as far as it is known.
  double elapsed = 0;     // Seconds that the tensor had been in flight, or the rank silent.
  std::string cause;  // What went wrong first, and on which rank, where this is only a consequence.
  std::string hint;   // What to do.

  bool operator==(const Failure&) const = default;
};

// What has been found out about the ranks that an error is blamed on.
inline constexpr const char* kDeadFinding = "dead";
inline constexpr const char* kSilentFinding = "silent";
inline constexpr const char* kLateFinding = "late";

// Each code maps to one Python exception class in csrc/torch/error_translation.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,  // ValueError: wrong arguments, found before any communication.
  kTypeError,        // TypeError: e.g. an unsupported dtype.
  kMismatch,         // MismatchError: ranks disagree; raised on every rank.
  kPeerLost,         // PeerLostError: a peer died or its connection closed.
  kTimeout,          // CollectiveTimeoutError.
  kAborted,          // AbortedError: shut down, or ended by an earlier error.
  kVersionMismatch,  // VersionMismatchError: different builds on different ranks.
  kInternal,         // MydistError: anything else, including a backend's own failure.
};
inline constexpr int kStatusCodeCount = 9;

// The code's name as shown in logs, e.g. "MISMATCH".
MYDIST_EXPORT std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] MYDIST_EXPORT Status {
 public:
  Status() = default;  // OK.
  Status(StatusCode code, std::string message);

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string message);
  static Status TypeError(std::string message);
  static Status Mismatch(std::string message);
  static Status PeerLost(std::string message);
  static Status Timeout(std::string message);
  static Status Aborted(std::string message);
  static Status VersionMismatch(std::string message);
  static Status Internal(std::string message);

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const;
  const std::string& message() const;
  // What went wrong first, and on which rank, where this error is only a consequence; else the
  // message. What others should be told.
  const std::string& cause() const;
  bool is_consequence() const;
  // Whether a peer is gone or has left: kPeerLost, or the time-out because of which it left.
  bool is_loss() const;

  // What is known of it as data; nothing of OK.
  const Failure& failure() const;
  // The same with what `known` has and this error's own record has not; OK stays OK.
  Status About(const Failure& known) const;

  // The same code and cause with `context` and ": " put before the message; OK stays OK.
  Status WithContext(std::string_view context) const;

  // The same code, and what is known, with a sentence behind the message; OK stays OK.
  Status WithSentence(std::string_view sentence) const;

  // "OK" or "CODE: message".
  std::string ToString() const;

 private:
  struct State {
    StatusCode code;
    std::string message;
    Failure failure;
  };
  Status(StatusCode code, std::string message, Failure failure);
  std::shared_ptr<const State> state_;
};

}  // namespace mydist

#define MYDIST_RETURN_IF_ERROR(expression)                        \
  do {                                                            \
    if (::mydist::Status status_ = (expression); !status_.ok()) { \
      return status_;                                             \
    }                                                             \
  } while (false)

// MYDIST_CHECK: an invariant of our own code. Never used on what a peer or a user sent.

namespace mydist {

[[noreturn]] MYDIST_EXPORT void CheckFailed(const char* file, int line, const char* condition);

}  // namespace mydist

#define MYDIST_CHECK(condition)                        \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::mydist::CheckFailed(__FILE__, __LINE__, #condition))

// Result<T>: a T, or the Status that says why there is none.
// Reading the value of a failed Result is a bug of ours and aborts.

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
