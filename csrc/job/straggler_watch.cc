#include "job/straggler_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mydist {
namespace {

// Less than this part of the time is not worth a word.
constexpr double kLeastShare = 0.2;
// A rank that waits less than this part of what the others wait comes last.
constexpr double kLastPart = 0.25;

}  // namespace

std::map<int, double> StragglerWatch::Shares(const std::map<int, Sample>& samples) const {
  std::map<int, double> shares;
  for (const auto& [rank, sample] : samples) {
    const auto before = at_begin_.find(rank);
    if (before == at_begin_.end()) continue;
    const Duration between = sample.as_of - before->second.as_of;
    // News that are too old say nothing of this window.
    if (between < window_ / 2) continue;
    shares[rank] = (sample.waited - before->second.waited) / ToSeconds(between);
  }
  return shares;
}

std::optional<StragglerNote> StragglerWatch::Look(std::span<const RankProgress> progress,
                                                  TimePoint now) {
  if (begin_ != kPast && now - begin_ < window_) return std::nullopt;
  std::map<int, Sample> samples;
  for (const RankProgress& one : progress) {
    const auto age = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(one.age));
    samples[one.rank] = {now - age, one.waited};
  }
  const std::map<int, double> shares = Shares(samples);
  const TimePoint began = std::exchange(begin_, now);
  at_begin_ = std::move(samples);
  if (shares.size() < 2) return std::nullopt;
  std::vector<double> sorted;
  for (const auto& [rank, share] : shares) sorted.push_back(share);
  std::sort(sorted.begin(), sorted.end());
  const double middle = sorted[sorted.size() / 2];
  if (middle < kLeastShare) return std::nullopt;
  StragglerNote note;
  for (const auto& [rank, share] : shares) {
    if (share < kLastPart * middle) note.ranks.push_back(rank);
  }
  if (note.ranks.empty()) return std::nullopt;
  const bool is_known = note.ranks == noted_;
  if (is_known && now < silent_until_) return std::nullopt;
  pause_ = is_known ? 2 * pause_ : 2 * window_;
  // Half a window earlier, as looks come a little late.
  silent_until_ = now + pause_ - window_ / 2;
  noted_ = note.ranks;
  note.watched = now - began;
  note.waited = std::chrono::duration_cast<Duration>(middle * note.watched);
  return note;
}

std::string StragglerText(const StragglerNote& note, const std::string& who) {
  return "the other ranks have waited " + SecondsText(note.waited) + " of the last " +
         SecondsText(note.watched) + " for " + who +
         ", which came to the collectives last. Look for a rank with more work, a slower processor "
         "or slower input.";
}

}  // namespace mydist
