#include "base/status.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace mydist {
namespace {

constexpr std::array<std::string_view, kStatusCodeCount> kStatusCodeNames = {
    "OK",      "INVALID_ARGUMENT", "TYPE_ERROR",       "MISMATCH", "PEER_LOST",
    "TIMEOUT", "ABORTED",          "VERSION_MISMATCH", "INTERNAL"};

}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  const auto number = static_cast<size_t>(code);
  return number < kStatusCodeNames.size() ? kStatusCodeNames[number] : "UNKNOWN";
}

Status::Status(StatusCode code, std::string message)
    : Status(code, std::move(message), Failure()) {}

Status::Status(StatusCode code, std::string message, Failure failure)
    : state_(std::make_shared<const State>(State{code, std::move(message), std::move(failure)})) {
  MYDIST_CHECK(code != StatusCode::kOk);
}

Status Status::InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status Status::TypeError(std::string message) {
  return {StatusCode::kTypeError, std::move(message)};
}
Status Status::Mismatch(std::string message) { return {StatusCode::kMismatch, std::move(message)}; }
Status Status::PeerLost(std::string message) { return {StatusCode::kPeerLost, std::move(message)}; }
Status Status::Timeout(std::string message) { return {StatusCode::kTimeout, std::move(message)}; }
Status Status::Aborted(std::string message) { return {StatusCode::kAborted, std::move(message)}; }
Status Status::VersionMismatch(std::string message) {
  return {StatusCode::kVersionMismatch, std::move(message)};
}
Status Status::Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

StatusCode Status::code() const { return ok() ? StatusCode::kOk : state_->code; }

const std::string& Status::message() const {
  static const std::string kEmpty;
  return ok() ? kEmpty : state_->message;
}

const std::string& Status::cause() const {
  return failure().cause.empty() ? message() : failure().cause;
}

bool Status::is_consequence() const { return !failure().cause.empty(); }

bool Status::is_loss() const {
  return code() == StatusCode::kPeerLost || (code() == StatusCode::kTimeout && is_consequence());
}

const Failure& Status::failure() const {
  static const Failure kNone;
  return ok() ? kNone : state_->failure;
}

Status Status::About(const Failure& known) const {
  if (ok()) return {};
  Failure failure = state_->failure;
  const auto fill = [](auto& field, const auto& value) {
    if (field == std::decay_t<decltype(field)>()) field = value;
  };
  fill(failure.operation, known.operation);
  fill(failure.tensor, known.tensor);
  fill(failure.phase, known.phase);
  fill(failure.ranks, known.ranks);
  fill(failure.host, known.host);
  fill(failure.pid, known.pid);
  if (failure.ranks == known.ranks) {
    fill(failure.hosts, known.hosts);
    fill(failure.pids, known.pids);
  }
  fill(failure.signal, known.signal);
  fill(failure.finding, known.finding);
  fill(failure.progress, known.progress);
  fill(failure.elapsed, known.elapsed);
  fill(failure.cause, known.cause);
  fill(failure.hint, known.hint);
  return {code(), message(), std::move(failure)};
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return {};
  return {code(), std::string(context) + ": " + message(), state_->failure};
}

Status Status::WithSentence(std::string_view sentence) const {
  if (ok() || sentence.empty()) return *this;
  const char* const joint = message().ends_with('.') ? " " : ". ";
  return {code(), message() + joint + std::string(sentence), state_->failure};
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code())) + ": " + message();
}

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "mydist: internal error at %s:%d: %s does not hold. Please report this.\n",
               file, line, condition);
  std::abort();
}

}  // namespace mydist
