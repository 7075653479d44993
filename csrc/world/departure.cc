#include "world/departure.h"

#include <charconv>

namespace mydist {
namespace {

// Between the rank that is to blame, empty when that is the one whose words these are, and the
// text.
constexpr char kSeparator = '\n';

struct Words {
  int rank = -1;  // -1: who left them.
  std::string text;
};

Words Parse(const std::string& words) {
  const size_t end = words.find(kSeparator);
  if (end == std::string::npos) return {-1, words};
  Words parsed{-1, words.substr(end + 1)};
  std::from_chars(words.data(), words.data() + end, parsed.rank);
  return parsed;
}

}  // namespace

std::string FarewellWords(const Status& error) {
  if (error.ok()) return "";
  const std::vector<int>& ranks = error.failure().ranks;
  const bool is_about_another = error.is_consequence() && !ranks.empty();
  return (is_about_another ? std::to_string(ranks.front()) : "") + kSeparator + error.cause();
}

Status PeerHasLeft(int rank, const std::string& who, const std::string& words) {
  const Words parsed = Parse(words);
  std::string text = parsed.text;
  if (text.empty()) {
    text = who + " has left the job while it is needed; its output says why";
  } else if (parsed.rank < 0) {
    text = who + " has left the job: " + text;
  }
  const int first = parsed.rank < 0 ? rank : parsed.rank;
  return Status::PeerLost(text).About({.ranks = {first}, .cause = text});
}

}  // namespace mydist
