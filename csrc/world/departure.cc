#include "world/departure.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace mydist {
namespace {

// Words are marks, the ranks to blame, the separator, and the text. A mark says that the speaker
// had waited too long, or what it knows of these ranks: that they are silent, or dead, or which
// signal has ended the one. In the list
// an empty entry is the rank whose words these are: the text does not name it, and is said to come
// from it.
constexpr char kTimeoutMark = '!';
constexpr char kSilentMark = '~';
constexpr char kDeadMark = '#';
constexpr char kSignalMark = '$';  // Before and behind the number of the signal that ended it.
constexpr char kSeparator = '\n';
constexpr char kComma = ',';
// More are not listed: words may be cut after a thousand bytes.
constexpr size_t kMaxBlamed = 32;

struct Words {
  std::vector<int> ranks;
  bool is_own = true;
  std::string text;
  bool is_timeout = false;
  bool is_silence = false;
  bool is_death = false;
  int signal = 0;
};

bool TakeMark(std::string_view& words, char mark) {
  const bool has_mark = words.starts_with(mark);
  if (has_mark) words.remove_prefix(1);
  return has_mark;
}

// 0: there is none. What is no number stays, and is no list of ranks either.
int TakeSignal(std::string_view& words) {
  constexpr int kMaxSignal = 64;
  if (!words.starts_with(kSignalMark)) return 0;
  const char* const end = words.data() + words.size();
  int signal = 0;
  const auto [stop, error] = std::from_chars(words.data() + 1, end, signal);
  const bool is_one = error == std::errc() && stop != end && *stop == kSignalMark && signal > 0 &&
                      signal <= kMaxSignal;
  if (!is_one) return 0;
  words.remove_prefix(static_cast<size_t>(stop + 1 - words.data()));
  return signal;
}

Words Parse(int speaker, const std::string& words, int size) {
  const size_t end = words.find(kSeparator);
  if (end == std::string::npos) return {{speaker}, true, words};
  Words parsed{{}, false, words.substr(end + 1)};
  std::string_view list = std::string_view(words).substr(0, end);
  parsed.is_timeout = TakeMark(list, kTimeoutMark);
  parsed.is_silence = TakeMark(list, kSilentMark);
  parsed.is_death = TakeMark(list, kDeadMark);
  parsed.signal = TakeSignal(list);
  for (size_t begin = 0; begin <= list.size();) {
    const size_t next = std::min(list.find(kComma, begin), list.size());
    const char* const stop = list.data() + next;
    int rank = -1;
    const bool is_rank =
        std::from_chars(list.data() + begin, stop, rank).ptr == stop && rank >= 0 && rank < size;
    if (!is_rank) {  // Empty, or no list of ours.
      rank = speaker;
      parsed.is_own = true;
    }
    const bool is_known = std::count(parsed.ranks.begin(), parsed.ranks.end(), rank) > 0;
    if (!is_known && parsed.ranks.size() < kMaxBlamed) parsed.ranks.push_back(rank);
    begin = next + 1;
  }
  if (parsed.ranks.size() != 1) parsed.signal = 0;  // It says of one rank how it has ended.
  return parsed;
}

}  // namespace

std::string WithoutCall(const Failure& failure, const std::string& text) {
  if (failure.operation.empty()) return text;
  const std::string tensor = failure.tensor.empty() ? "" : " '" + failure.tensor + "'";
  const std::string call = failure.operation + tensor + ": ";
  return text.starts_with(call) ? text.substr(call.size()) : text;
}

std::string FarewellWords(const Status& error) {
  if (error.ok()) return "";
  std::string words;
  const std::vector<int>& ranks = error.failure().ranks;
  const bool is_timeout = error.code() == StatusCode::kTimeout && !ranks.empty();
  if (error.code() == StatusCode::kPeerLost || is_timeout || error.is_consequence()) {
    for (const int rank : std::span(ranks).first(std::min(ranks.size(), kMaxBlamed))) {
      words += (words.empty() ? "" : ",") + std::to_string(rank);
    }
  }
  // A loss that only this rank has seen may be a fault between the two ranks, unless it knows more.
  const bool is_silence = error.failure().finding == kSilentFinding;
  const bool is_death = error.failure().finding == kDeadFinding;
  const bool is_sure = is_timeout || is_silence || is_death || error.is_consequence();
  if (!words.empty() && !is_sure) words += kComma;
  if (error.failure().signal != 0 && ranks.size() == 1 && !words.empty()) {
    words.insert(0, kSignalMark + std::to_string(error.failure().signal) + kSignalMark);
  }
  if (is_silence && !words.empty()) words.insert(0, 1, kSilentMark);
  if (is_death && !words.empty()) words.insert(0, 1, kDeadMark);
  if (is_timeout) words.insert(0, 1, kTimeoutMark);
  // Ranks that hear of it say themselves in which call.
  const bool leaves_call_out = is_silence || is_death;
  const std::string& cause = error.cause();
  return words + kSeparator + (leaves_call_out ? WithoutCall(error.failure(), cause) : cause);
}

Status PeerHasLeft(int rank, const std::string& who, const std::string& words, int size) {
  Words parsed = Parse(rank, words, size);
  std::string text = std::move(parsed.text);
  if (text.empty()) {
    text = who + " has left the job while other ranks still need it; see its output";
  } else if (parsed.is_own) {
    text = who + " has left the job: " + text;
  }
  const StatusCode code = parsed.is_timeout ? StatusCode::kTimeout : StatusCode::kPeerLost;
  const char* const finding = parsed.is_silence   ? kSilentFinding
                              : parsed.is_death   ? kDeadFinding
                              : parsed.is_timeout ? kLateFinding
                                                  : "";
  return Status(code, text)
      .About({.ranks = std::move(parsed.ranks),
              .signal = parsed.signal,
              .finding = finding,
              .cause = text});
}

}  // namespace mydist
