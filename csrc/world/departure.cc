#include "world/departure.h"

namespace mydist {
namespace {

// Begins words that name the rank which left first. No message begins so.
constexpr char kNamesFirst = '\x01';

}  // namespace

std::string FarewellWords(const Status& error) {
  return error.is_consequence() ? kNamesFirst + error.cause() : error.cause();
}

std::string DepartureText(const std::string& who, const std::string& words) {
  if (words.empty()) return who + " has left the job while it is needed; its output says why";
  if (words.front() == kNamesFirst) return words.substr(1);
  return who + " has left the job: " + words;
}

Status PeerHasLeft(const std::string& who, const std::string& words) {
  const std::string text = DepartureText(who, words);
  return Status::PeerLost(text).Because(text);
}

}  // namespace mydist
