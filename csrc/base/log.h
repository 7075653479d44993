// The one logger: "level, time, [rank r/n], file:line, message" on stderr, one write per line.
// Level and rank are set once by the runtime; any thread may log at any time.
#pragma once

#include <sstream>

#include "base/export.h"

namespace mydist {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarning, kError, kOff };

MYDIST_EXPORT void SetLogLevel(LogLevel level);
MYDIST_EXPORT LogLevel GetLogLevel();
// Shown as [rank r/n]; rank < 0 shows nothing.
MYDIST_EXPORT void SetLogRank(int rank, int size);

// Whether a line can be written without a wait: the reader of the error output may have stopped.
MYDIST_EXPORT bool LogTakesLine();

class MYDIST_EXPORT LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line);
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  const char* file_;
  int line_;
  std::ostringstream stream_;
};

// Turns the stream into void; & binds weaker than << and stronger than ?:.
struct LogVoid {
  void operator&(std::ostream&) const {}
};

}  // namespace mydist

// An expression, so that it can stand in an if without braces; the right side is evaluated only
// when the level is on.
#define MYDIST_LOG(level)                             \
  ::mydist::LogLevel::level < ::mydist::GetLogLevel() \
      ? static_cast<void>(0)                          \
      : ::mydist::LogVoid() &                         \
            ::mydist::LogLine(::mydist::LogLevel::level, __FILE__, __LINE__).stream()
