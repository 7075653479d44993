#include "memory/shm/arena_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "base/signal_block.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {
namespace {

constexpr std::string_view kPrefix = "mydist-";
constexpr size_t kNameDigits = 32;
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;
// The maker of a younger file may not have its lock yet.
constexpr time_t kStaleSeconds = 60;

Status SystemError(const std::string& what, int error) {
  return Status::Internal(what + ": " + std::generic_category().message(error));
}

std::string DescriptorPath(const std::string& process, int descriptor) {
  return "/proc/" + process + "/fd/" + std::to_string(descriptor);
}

// "pid/descriptor", with no other characters; else nothing.
std::optional<std::string> PathInProc(const std::string& address) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t slash = address.find('/');
  if (slash == 0 || slash > 10 || slash == std::string::npos) return std::nullopt;
  const std::string descriptor = address.substr(slash + 1);
  if (descriptor.empty() || descriptor.size() > 9) return std::nullopt;
  if (address.find_first_not_of(kDigits) != slash) return std::nullopt;
  if (descriptor.find_first_not_of(kDigits) != std::string::npos) return std::nullopt;
  return "/proc/" + address.substr(0, slash) + "/fd/" + descriptor;
}

// The path may lead to anything, so the file's type is checked before it is opened.
int OpenPeersDescriptor(const std::string& path) {
  const int there = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (there < 0) return -1;
  struct stat info {};
  const bool is_file = fstat(there, &info) == 0 && S_ISREG(info.st_mode);
  const int descriptor =
      is_file ? open(DescriptorPath("self", there).c_str(), O_RDWR | O_CLOEXEC) : -1;
  const int error = is_file ? errno : EINVAL;
  close(there);
  errno = error;
  return descriptor;
}

Status NoRoom(const std::string& directory, int64_t bytes, int error) {
  return SystemError(
      directory + " has no room for shared memory: " + ArenaFile::NeededAndFree(directory, bytes) +
          " (in a container, enlarge it with --shm-size)",
      error);
}

// A write beyond it would be a signal.
bool MayGrowTo(int64_t bytes) {
  struct rlimit limit {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || static_cast<rlim_t>(bytes) <= limit.rlim_cur);
}

bool IsOwnFile(const std::string& path, struct stat& info) {
  return lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
}

struct flock LockOf(int64_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// Any process of any rank, also in another container.
bool IsLocked(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return true;
  struct flock lock = LockOf(0);
  lock.l_len = 0;  // To the end.
  const bool is_free = fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  close(descriptor);
  return !is_free;
}

}  // namespace

Result<std::string> ArenaFile::DrawName() {
  std::array<uint8_t, kNameDigits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return SystemError("cannot make a random name for shared memory (getrandom)", errno);
  }
  std::string name(kPrefix);
  for (const uint8_t byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

Result<std::shared_ptr<ArenaFile>> ArenaFile::CreateNameless(const std::string& directory,
                                                             int64_t bytes, int64_t later_bytes) {
  const int descriptor = open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, kOwnerOnly);
  // Systems differ in how they say that they do not know such files.
  if (descriptor < 0) return std::shared_ptr<ArenaFile>();
  return Populate(std::shared_ptr<ArenaFile>(new ArenaFile(descriptor, directory)), bytes,
                  later_bytes);
}

Result<std::shared_ptr<ArenaFile>> ArenaFile::CreateNamed(const std::string& directory,
                                                          const std::string& name, int64_t bytes,
                                                          int64_t later_bytes) {
  const std::string path = directory + "/" + name;
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const int descriptor = open(path.c_str(), flags, kOwnerOnly);
  if (descriptor >= 0) {
    return Populate(std::shared_ptr<ArenaFile>(new ArenaFile(descriptor, directory)), bytes,
                    later_bytes);
  }
  const int error = errno;
  // Populate reports a lack of bytes.
  const char* const but = error == ENOSPC ? "; its files (inodes) may be used up" : "";
  return SystemError(
      "cannot create shared memory in " + directory + ": " + NeededAndFree(directory, bytes) + but,
      error);
}

Result<std::shared_ptr<ArenaFile>> ArenaFile::Populate(std::shared_ptr<ArenaFile> file,
                                                       int64_t bytes, int64_t later_bytes) {
  // Reserved at once: a page that is missing later would be a SIGBUS.
  MYDIST_RETURN_IF_ERROR(file->Reserve(0, bytes - later_bytes));
  if (later_bytes > 0) MYDIST_RETURN_IF_ERROR(file->Extend(bytes));
  MYDIST_RETURN_IF_ERROR(file->Map(bytes, later_bytes));
  return file;
}

Result<std::shared_ptr<ArenaFile>> ArenaFile::Open(const std::string& directory,
                                                   const std::string& address, int64_t bytes,
                                                   int64_t later_bytes) {
  const std::optional<std::string> in_proc = PathInProc(address);
  if (!in_proc && !IsName(address)) {
    return Status::Internal("'" + address + "' is not an address of shared memory");
  }
  const std::string path = in_proc ? *in_proc : directory + "/" + address;
  const int descriptor =
      in_proc ? OpenPeersDescriptor(path) : open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    return SystemError(
        "cannot open the shared memory of the other ranks in " + directory +
            " (are the ranks in separate containers?): " + NeededAndFree(directory, bytes),
        error);
  }
  std::shared_ptr<ArenaFile> file(new ArenaFile(descriptor, directory));
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return SystemError("fstat(" + path + ") failed", errno);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_size < bytes) {
    return Status::Internal(path + " is not the shared memory of this job: expected a file of " +
                            std::to_string(bytes) + " bytes or more of user " +
                            std::to_string(geteuid()) + ", got " + std::to_string(info.st_size) +
                            " bytes of user " + std::to_string(info.st_uid));
  }
  MYDIST_RETURN_IF_ERROR(file->Map(bytes, later_bytes));
  return file;
}

// A peer sent it: it must not lead anywhere else.
bool ArenaFile::IsName(const std::string& address) {
  return address.size() == kPrefix.size() + kNameDigits && address.starts_with(kPrefix) &&
         address.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
}

Status ArenaFile::GiveName(const std::string& name) const {
  const std::string here = DescriptorPath("self", descriptor_);
  const std::string path = directory_ + "/" + name;
  if (linkat(AT_FDCWD, here.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    return Status::Ok();
  }
  const int error = errno;
  return SystemError("cannot give shared memory in " + directory_ +
                         " a name: " + NeededAndFree(directory_, bytes_),
                     error);
}

std::string ArenaFile::ProcAddress() const {
  return std::to_string(getpid()) + "/" + std::to_string(descriptor_);
}

void ArenaFile::RemoveName(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  struct stat info {};
  if (IsOwnFile(path, info)) unlink(path.c_str());
}

void ArenaFile::RemoveStaleNames(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator file(directory, error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    const std::string path = file->path();
    struct stat info {};
    if (!IsName(file->path().filename()) || !IsOwnFile(path, info)) continue;
    if (time(nullptr) - info.st_mtime > kStaleSeconds && !IsLocked(path)) unlink(path.c_str());
  }
}

ArenaFile::Room ArenaFile::RoomOf(const std::string& directory) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return {};
  if (info.f_blocks == 0) return {kMost, kMost};
  const auto bytes_of = [&](uint64_t blocks) {
    const auto most = static_cast<uint64_t>(kMost);
    return static_cast<int64_t>(std::min(blocks, most / info.f_frsize) * info.f_frsize);
  };
  return {bytes_of(info.f_blocks), bytes_of(info.f_bavail)};
}

std::string ArenaFile::NeededAndFree(const std::string& directory, int64_t bytes) {
  return "needed " + std::to_string(bytes) + " bytes, free " +
         std::to_string(RoomOf(directory).free_bytes);
}

ArenaFile::~ArenaFile() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
  close(descriptor_);
}

Status ArenaFile::Map(int64_t bytes, int64_t later_bytes) {
  // Populating a page that is not reserved would take it.
  const auto map = [this](void* place, int64_t length, int flags) {
    return mmap(place, static_cast<size_t>(length), PROT_READ | PROT_WRITE, MAP_SHARED | flags,
                descriptor_, 0);
  };
  void* memory = map(nullptr, bytes, later_bytes == 0 ? MAP_POPULATE : 0);
  const int64_t first_bytes = RoundDown(bytes - later_bytes, kPageBytes);
  if (memory == MAP_FAILED ||
      (later_bytes > 0 && map(memory, first_bytes, MAP_POPULATE | MAP_FIXED) == MAP_FAILED)) {
    return SystemError("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  memory_ = static_cast<uint8_t*>(memory);
  bytes_ = bytes;
  return Status::Ok();
}

Status ArenaFile::Extend(int64_t bytes) {
  if (!MayGrowTo(bytes))
    return SystemError("cannot extend a file to " + std::to_string(bytes) + " bytes", EFBIG);
  if (ftruncate(descriptor_, bytes) == 0) return Status::Ok();
  return SystemError("cannot extend a file to " + std::to_string(bytes) + " bytes", errno);
}

int64_t ArenaFile::length_bytes() const {
  struct stat info {};
  return fstat(descriptor_, &info) == 0 ? info.st_size : 0;
}

Result<uint8_t*> ArenaFile::MapSparse(int64_t offset, int64_t bytes) const {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, descriptor_, offset);
  if (memory != MAP_FAILED) return static_cast<uint8_t*>(memory);
  return SystemError("cannot map " + std::to_string(bytes) + " bytes for shared tensors", errno);
}

bool ArenaFile::MapPrivate(uint8_t* place, int64_t offset, int64_t bytes) const {
  return mmap(place, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, descriptor_, offset) != MAP_FAILED;
}

Status ArenaFile::Reserve(int64_t offset, int64_t bytes) const {
  // Older kernels give up what they have reserved when a signal comes; with a timer's coming
  // all the time, trying again would never end.
  const SignalBlock block;
  int error = MayGrowTo(offset + bytes) ? EINTR : EFBIG;
  while (error == EINTR) error = posix_fallocate(descriptor_, offset, bytes);
  return error == 0 ? Status::Ok() : NoRoom(directory_, bytes, error);
}

Status ArenaFile::NoRoomForTensors(int64_t bytes, int rank_count) const {
  const Room room = RoomOf(directory_);
  return Status::Internal(
      directory_ + " has no room for tensors of " + std::to_string(bytes) + " bytes on each of " +
      std::to_string(rank_count) + " ranks: needed " +
      std::to_string(static_cast<uint64_t>(bytes) * static_cast<uint64_t>(rank_count)) +
      " bytes, free " + std::to_string(room.free_bytes) + ", of which " +
      std::to_string(room.kept_bytes()) +
      " are kept for other programs (in a container, enlarge it with "
      "--shm-size)");
}

void ArenaFile::Release(int64_t offset, int64_t bytes) const {
  // Pages that stay are only a waste.
  static_cast<void>(
      fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes));
}

Status ArenaFile::Lock(int64_t byte) {
  struct flock lock = LockOf(byte);
  if (fcntl(descriptor_, F_SETLK, &lock) == 0) return Status::Ok();
  return SystemError("cannot lock shared memory", errno);
}

std::optional<pid_t> ArenaFile::LockHolder(int64_t byte) const {
  struct flock lock = LockOf(byte);
  while (fcntl(descriptor_, F_GETLK, &lock) != 0) {
    if (errno == EINTR) continue;
    // The rank counts as alive; the control plane notices its death.
    static std::once_flag warned;
    std::call_once(warned, [error = errno] {
      MYDIST_LOG(kWarning) << "cannot test whether the ranks of this host are alive (fcntl: "
                           << std::generic_category().message(error)
                           << "); a dead rank may be detected late";
    });
    return 0;
  }
  if (lock.l_type == F_UNLCK) return std::nullopt;
  return lock.l_pid;
}

std::string FileOffer::Encode() const {
  return address + '\n' + name + '\n' + std::string(cookie.begin(), cookie.end());
}

std::optional<FileOffer> FileOffer::Decode(const std::string& text) {
  FileOffer offer;
  const size_t address_end = text.find('\n');
  if (address_end == std::string::npos) return std::nullopt;
  const size_t name_end = text.find('\n', address_end + 1);
  if (name_end == std::string::npos) return std::nullopt;
  if (text.size() - name_end - 1 != offer.cookie.size()) return std::nullopt;
  offer.address = text.substr(0, address_end);
  offer.name = text.substr(address_end + 1, name_end - address_end - 1);
  if (!ArenaFile::IsName(offer.name)) return std::nullopt;
  std::copy(text.begin() + static_cast<std::ptrdiff_t>(name_end) + 1, text.end(),
            offer.cookie.begin());
  return offer;
}

}  // namespace mydist::shm
