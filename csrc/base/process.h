// Processes of this machine: how one has ended, by which signal or with which exit code. The kernel
// tells it to the parent and, since Linux 6.15, to every process that has a descriptor of it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/export.h"

namespace mydist {

struct ProcessEnd {
  bool by_signal = false;
  int number = 0;  // Of the signal, or the exit code.

  bool operator==(const ProcessEnd&) const = default;
};

// Which file a descriptor is open on. A program may close a descriptor that it does not know.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;

  // Nothing: it is not open.
  MYDIST_EXPORT static std::optional<FileIdentity> Of(int descriptor);
  bool operator==(const FileIdentity&) const = default;
};

// A new descriptor that polls readable when the process ends; -1 where the kernel gives none.
MYDIST_EXPORT int OpenPidfd(pid_t pid);

// Processes that are equal in this see each other by the same numbers; empty: not known.
MYDIST_EXPORT std::string PidNamespace();

// What the process seems to do, for a user whose ranks wait for it: "it runs, but is busy with
// something else." 0: it is on another host.
MYDIST_EXPORT std::string ProcessStateText(int64_t pid);

// Of a file of /proc; empty where it cannot be read, as that of a process that has just ended.
MYDIST_EXPORT std::string ContentsOf(const std::string& path);

// Whether a signal or a debugger has stopped it. False where there is none of this number.
MYDIST_EXPORT bool IsStopped(int64_t pid);

// A process that is known to run when it is opened. Owns the descriptor, where there is one.
class MYDIST_EXPORT Process {
 public:
  explicit Process(pid_t pid);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool is_open() const { return opened_.has_value(); }
  // False also where that cannot be known.
  bool HasEnded() const;
  // Nothing: it runs, or the kernel does not tell.
  std::optional<ProcessEnd> End() const;

 private:
  std::optional<int> StatusOfZombie() const;

  const pid_t pid_;
  const int descriptor_;
  const std::optional<FileIdentity> opened_;
};

}  // namespace mydist
