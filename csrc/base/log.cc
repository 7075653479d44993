#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace mydist {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<int> g_rank{-1};
std::atomic<int> g_size{0};

constexpr std::array<const char*, 5> kNames = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR"};

std::string TimeOfDay() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1000000;
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min,
                local.tm_sec, static_cast<int>(micros));
  return text.data();
}

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel GetLogLevel() { return g_level.load(std::memory_order_relaxed); }
void SetLogRank(int rank, int size) {
  g_size.store(size, std::memory_order_relaxed);
  g_rank.store(rank, std::memory_order_relaxed);
}

bool LogTakesLine() {
  pollfd polled{STDERR_FILENO, POLLOUT, 0};
  return poll(&polled, 1, 0) != 0;
}

LogLine::LogLine(LogLevel level, const char* file, int line)
    : level_(level), file_(file), line_(line) {}

LogLine::~LogLine() {
  const char* slash = std::strrchr(file_, '/');
  std::ostringstream line;
  line << "mydist " << kNames[static_cast<size_t>(level_)] << " " << TimeOfDay();
  const int rank = g_rank.load(std::memory_order_relaxed);
  if (rank >= 0) {
    line << " [rank " << rank << "/" << g_size.load(std::memory_order_relaxed) << "]";
  }
  line << " " << (slash != nullptr ? slash + 1 : file_) << ":" << line_ << " " << stream_.str()
       << "\n";
  const std::string text = line.str();
  // One write, so that lines of several threads and ranks do not mix; nothing to do if it fails.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace mydist
