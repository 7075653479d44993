#include "ops/shm/arena_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace mydist::shm {
namespace {

constexpr std::string_view kPrefix = "mydist-";
constexpr size_t kNameDigits = 32;

Status SystemError(const std::string& what, int error) {
  return Status::Internal(what + ": " + std::generic_category().message(error));
}

Result<std::string> RandomName() {
  std::array<uint8_t, kNameDigits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return SystemError("no random name for shared memory", errno);
  }
  std::string name(kPrefix);
  for (const uint8_t byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

// A peer sent it: it must not lead anywhere else.
bool IsArenaName(const std::string& name) {
  return name.size() == kPrefix.size() + kNameDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
}

Status NoRoom(const std::string& directory, int64_t bytes, int error) {
  struct statvfs info {};
  std::string free_text = "unknown";
  if (statvfs(directory.c_str(), &info) == 0) {
    free_text = std::to_string(static_cast<uint64_t>(info.f_bavail) * info.f_frsize);
  }
  return SystemError(directory + " has no room for shared memory: needed " + std::to_string(bytes) +
                         " bytes, free " + free_text +
                         " (in a container, enlarge it with --shm-size)",
                     error);
}

int Reserve(int descriptor, int64_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(descriptor, 0, bytes);
  return error;
}

struct flock LockOf(int64_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Result<std::unique_ptr<ArenaFile>> ArenaFile::Create(const std::string& directory, int64_t bytes) {
  MYDIST_ASSIGN_OR_RETURN(std::string name, RandomName());
  const std::string path = directory + "/" + name;
  const int descriptor =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return SystemError("no shared memory in " + directory, errno);
  std::unique_ptr<ArenaFile> file(new ArenaFile(descriptor, std::move(name)));
  Status status;
  // Reserved at once: a page that is missing later would be a SIGBUS.
  if (const int error = Reserve(descriptor, bytes); error != 0) {
    status = NoRoom(directory, bytes, error);
  } else {
    status = file->Map(bytes);
  }
  if (status.ok()) return file;
  Unlink(directory, file->name());
  return status;
}

Result<std::unique_ptr<ArenaFile>> ArenaFile::Open(const std::string& directory,
                                                   const std::string& name, int64_t bytes) {
  if (!IsArenaName(name)) return Status::Internal("'" + name + "' is no name of shared memory");
  const std::string path = directory + "/" + name;
  const int descriptor = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) {
    return SystemError("the shared memory of this host's other ranks is not in " + directory +
                           " here (containers that do not share it?)",
                       errno);
  }
  std::unique_ptr<ArenaFile> file(new ArenaFile(descriptor, name));
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return SystemError("fstat of " + path, errno);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_size != bytes) {
    return Status::Internal(path + " is not the expected shared memory: expected a file of " +
                            std::to_string(bytes) + " bytes of user " + std::to_string(geteuid()) +
                            ", got " + std::to_string(info.st_size) + " bytes of user " +
                            std::to_string(info.st_uid));
  }
  MYDIST_RETURN_IF_ERROR(file->Map(bytes));
  return file;
}

void ArenaFile::Unlink(const std::string& directory, const std::string& name) {
  if (IsArenaName(name)) unlink((directory + "/" + name).c_str());
}

ArenaFile::~ArenaFile() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
  close(descriptor_);
}

Status ArenaFile::Map(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, descriptor_, 0);
  if (memory == MAP_FAILED) {
    return SystemError("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  memory_ = static_cast<uint8_t*>(memory);
  bytes_ = bytes;
  return Status::Ok();
}

Status ArenaFile::Lock(int64_t byte) {
  struct flock lock = LockOf(byte);
  if (fcntl(descriptor_, F_SETLK, &lock) == 0) return Status::Ok();
  return SystemError("cannot lock shared memory", errno);
}

bool ArenaFile::IsLockedElsewhere(int64_t byte) const {
  struct flock lock = LockOf(byte);
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace mydist::shm
