#include "base/process.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

namespace mydist {
namespace {

// Of linux/pidfd.h, which older systems lack.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr uint64_t kInfoExit = 1 << 3;

// In /proc/<pid>/stat, counted from the state, which follows the name in parentheses.
constexpr int kExitCodeField = 49;

// The letter in /proc/<pid>/stat, which follows the name in parentheses; '?': it is not known.
char StateOf(int64_t pid) {
  const std::string stat = pid > 0 ? ContentsOf("/proc/" + std::to_string(pid) + "/stat") : "";
  const size_t name_end = stat.rfind(')');  // The name may hold anything.
  return name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
}

}  // namespace

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  // An iterator of the buffer would throw where a read fails; this only ends.
  std::array<char, 4096> piece{};
  while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  return text;
}

bool IsStopped(int64_t pid) {
  const char state = StateOf(pid);
  return state == 'T' || state == 't';
}

std::optional<FileIdentity> FileIdentity::Of(int descriptor) {
  struct stat file {};
  if (descriptor < 0 || fstat(descriptor, &file) != 0) return std::nullopt;
  return FileIdentity{.device = file.st_dev, .inode = file.st_ino};
}

int OpenPidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

std::string PidNamespace() {
  struct stat own {};
  std::string machine = ContentsOf("/proc/sys/kernel/random/boot_id");
  if (machine.empty() || stat("/proc/self/ns/pid", &own) != 0) return "";
  if (machine.back() == '\n') machine.pop_back();
  return machine + "/" + std::to_string(own.st_ino);
}

Process::Process(pid_t pid)
    : pid_(pid), descriptor_(OpenPidfd(pid)), opened_(FileIdentity::Of(descriptor_)) {}

Process::~Process() {
  if (opened_ && FileIdentity::Of(descriptor_) == opened_) close(descriptor_);
}

std::optional<ProcessEnd> Process::End() const {
  if (!HasEnded()) return std::nullopt;
  PidfdInfo info{.mask = kInfoExit};
  const bool is_told = ioctl(descriptor_, kGetInfo, &info) == 0 && (info.mask & kInfoExit) != 0;
  // It is told as soon as the parent has asked how the process ended.
  const std::optional<int> status = is_told ? info.exit_code : StatusOfZombie();
  if (!status) return std::nullopt;
  if (WIFSIGNALED(*status)) return ProcessEnd{.by_signal = true, .number = WTERMSIG(*status)};
  return ProcessEnd{.by_signal = false, .number = WEXITSTATUS(*status)};
}

bool Process::HasEnded() const {
  pollfd entry{descriptor_, POLLIN, 0};
  return opened_ && FileIdentity::Of(descriptor_) == opened_ && poll(&entry, 1, 0) == 1;
}

// Until the parent has asked. As waitpid() would give it.
std::optional<int> Process::StatusOfZombie() const {
  const std::string line = ContentsOf("/proc/" + std::to_string(pid_) + "/stat");
  const size_t name_end = line.rfind(')');  // The name may hold anything.
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  rest >> state;
  std::string skipped;
  for (int field = 1; field < kExitCodeField; ++field) rest >> skipped;
  int status = 0;
  if (!(rest >> status) || state != "Z") return std::nullopt;
  // While the process of the descriptor is there, no other one has its number.
  if (syscall(SYS_pidfd_send_signal, descriptor_, 0, nullptr, 0) != 0) return std::nullopt;
  return status;
}

std::string ProcessStateText(int64_t pid) {
  switch (StateOf(pid)) {
    case 'T':
    case 't':
      return "a signal or a debugger has stopped it. Resume it (kill -CONT " + std::to_string(pid) +
             ") or end it (kill -KILL " + std::to_string(pid) + ").";
    case 'R':
    case 'S':
      return "it runs, but is busy with something else.";
    case 'D':
      return "it is stuck in the kernel, perhaps with a disk or a file server.";
    default:
      return "it is stopped or cannot be reached.";
  }
}

}  // namespace mydist
