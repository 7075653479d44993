#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "base/clock.h"

namespace mydist {
namespace {

constexpr std::array<std::string_view, 7> kPlaces = {"negotiate", "fuse",     "copy_in", "reduce",
                                                     "copy_out",  "callback", "shutdown"};
constexpr std::array<std::string_view, 5> kActs = {"kill", "segv", "stop", "exit", "raise"};
constexpr std::string_view kDelayPrefix = "delay_";
constexpr int64_t kMostMilliseconds = 600'000;

template <size_t kCount>
std::optional<int> IndexIn(const std::array<std::string_view, kCount>& words,
                           std::string_view word) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) return std::nullopt;
  return static_cast<int>(found - words.begin());
}

std::optional<int64_t> ParseCount(std::string_view text, int64_t most) {
  int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < 1 || value > most) return std::nullopt;
  return value;
}

// What is armed. Written before the flag is set, by ArmFailpoint.
Failpoint armed;
std::atomic<int64_t> passes{0};

// Writes the moment, on the clock that all processes of a host share. A test measures from it how
// soon other ranks learn of the fault.
void Tell(const Failpoint& failpoint) {
  const double seconds = std::chrono::duration<double>(Now().time_since_epoch()).count();
  std::array<char, 96> line{};
  const int length = std::snprintf(line.data(), line.size(), "failpoint %s strikes at %.6f s\n",
                                   kPlaces[static_cast<size_t>(failpoint.place)].data(), seconds);
  // Not through stdio: the process may be gone a moment later.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), static_cast<size_t>(length));
}

void Strike(const Failpoint& failpoint) {
  switch (failpoint.act) {
    case FailAct::kKill:
      kill(getpid(), SIGKILL);
      return;
    case FailAct::kSegv:
      // The default action ends the process, as a real fault without a handler does.
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
      return;
    case FailAct::kStop:
      kill(getpid(), SIGSTOP);
      return;
    case FailAct::kExit:
      _exit(0);
    case FailAct::kRaise:
      throw std::runtime_error("failpoint " +
                               std::string(kPlaces[static_cast<size_t>(failpoint.place)]));
    case FailAct::kDelay:
      std::this_thread::sleep_for(failpoint.delay);
      return;
  }
}

}  // namespace

namespace internal {

std::atomic<bool> failpoint_is_armed{false};

void PassArmedFailpoint(FailPlace place) {
  if (place != armed.place || passes.fetch_add(1) + 1 != armed.pass) return;
  Tell(armed);
  Strike(armed);
}

}  // namespace internal

std::optional<Failpoint> Failpoint::Parse(std::string_view text) {
  const size_t first = text.find(':');
  const size_t second = text.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  const auto place = IndexIn(kPlaces, text.substr(0, first));
  const auto pass = ParseCount(text.substr(first + 1, second - first - 1), INT64_MAX);
  if (!place || !pass) return std::nullopt;
  Failpoint failpoint{.place = static_cast<FailPlace>(*place), .pass = *pass};
  const std::string_view act = text.substr(second + 1);
  if (act.starts_with(kDelayPrefix)) {
    const auto delay = ParseCount(act.substr(kDelayPrefix.size()), kMostMilliseconds);
    if (!delay) return std::nullopt;
    failpoint.act = FailAct::kDelay;
    failpoint.delay = std::chrono::milliseconds(*delay);
    return failpoint;
  }
  const auto index = IndexIn(kActs, act);
  if (!index) return std::nullopt;
  failpoint.act = static_cast<FailAct>(*index);
  return failpoint;
}

std::string Failpoint::AllowedText() {
  std::string text = "PLACE:PASS:ACT with a place of";
  for (const std::string_view place : kPlaces) text += " " + std::string(place);
  text += ", a pass from 1 on, and an act of";
  for (const std::string_view act : kActs) text += " " + std::string(act);
  return text + " delay_MILLISECONDS";
}

void ArmFailpoint(const std::optional<Failpoint>& failpoint) {
  internal::failpoint_is_armed.store(false);
  passes.store(0);
  if (!failpoint) return;
  armed = *failpoint;
  internal::failpoint_is_armed.store(true);
}

}  // namespace mydist
