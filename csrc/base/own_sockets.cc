#include "base/own_sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

#include "base/log.h"
#include "base/mutex.h"

namespace mydist {
namespace {

// All sets of this process.
struct Sets {
  Mutex mutex;  // Held while a fork is on.
  std::vector<const std::vector<OwnSockets::Socket>*> list MYDIST_GUARDED_BY(mutex);
};

// Never destroyed: a program may fork while it exits.
Sets& TheSets() {
  static Sets* const kSets = new Sets;
  return *kSets;
}

// The analysis follows no lock from one function to the next.
void BeforeFork() MYDIST_NO_THREAD_SAFETY_ANALYSIS { TheSets().mutex.Lock(); }

void AfterForkInParent() MYDIST_NO_THREAD_SAFETY_ANALYSIS { TheSets().mutex.Unlock(); }

void AfterForkInChild() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  for (const auto* sockets : TheSets().list) {
    for (const OwnSockets::Socket& socket : *sockets) {
      struct stat info {};
      const bool is_same = fstat(socket.descriptor, &info) == 0 && S_ISSOCK(info.st_mode) &&
                           info.st_ino == socket.inode;
      if (is_same) close(socket.descriptor);
    }
  }
  TheSets().list.clear();
  TheSets().mutex.Unlock();
}

}  // namespace

std::optional<std::set<int>> OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return std::nullopt;
  std::set<int> found;
  while (const dirent* entry = readdir(directory)) {
    int descriptor = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    const auto parsed = std::from_chars(entry->d_name, end, descriptor);
    if (parsed.ec == std::errc() && parsed.ptr == end && descriptor != dirfd(directory)) {
      found.insert(descriptor);
    }
  }
  closedir(directory);
  return found;
}

OwnSockets::OwnSockets() : before_(OpenDescriptors().value_or(std::set<int>())) { Register(); }

OwnSockets::OwnSockets(std::span<const int> descriptors) {
  for (const int descriptor : descriptors) Add(descriptor, sockets_);
  Register();
}

void OwnSockets::Register() {
  static const bool kRegistered =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
  if (!kRegistered) {
    MYDIST_LOG(kWarning) << "pthread_atfork failed: other ranks may notice the death of this one "
                            "only when its forked children have ended";
  }
  MutexLock lock(TheSets().mutex);
  TheSets().list.push_back(&sockets_);
}

void OwnSockets::Add(int descriptor, std::vector<Socket>& sockets) {
  struct stat info {};
  if (fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode)) {
    sockets.push_back({descriptor, info.st_ino});
  }
}

OwnSockets::~OwnSockets() {
  MutexLock lock(TheSets().mutex);
  std::erase(TheSets().list, &sockets_);
}

void OwnSockets::Keep() {
  std::vector<Socket> sockets;
  for (const int descriptor : OpenDescriptors().value_or(std::set<int>())) {
    const int flags = fcntl(descriptor, F_GETFD);
    if (before_.contains(descriptor) || flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC);
    Add(descriptor, sockets);
  }
  MutexLock lock(TheSets().mutex);
  sockets_ = std::move(sockets);
}

}  // namespace mydist
