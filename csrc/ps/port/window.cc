#include "ps/port/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/signal_block.h"
#include "ps/port/greeting.h"

namespace mydist::ps {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status NoWindow(const std::string& what, int error) {
  return Status::Internal("cannot " + what + ": " + std::strerror(error));
}

Status CheckBytes(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > 0 && bytes <= kMaxWindowBytes && bytes % page == 0) return Status::Ok();
  return Status::Internal("a window has " + std::to_string(bytes) +
                          " bytes, expected whole pages of " + std::to_string(page) +
                          " bytes and at most " + std::to_string(kMaxWindowBytes));
}

Result<std::shared_ptr<Window>> MapFile(const Descriptor& file, uint64_t bytes) {
  // With its pages in the table: the first pushes are not the ones to wait for that.
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.number(), 0);
  if (memory == MAP_FAILED) return NoWindow("map a window of shared memory", errno);
  return std::make_shared<Window>(std::span(static_cast<uint8_t*>(memory), bytes));
}

}  // namespace

Result<std::shared_ptr<Window>> Window::Make(uint64_t bytes, Descriptor& file) {
  MYDIST_RETURN_IF_ERROR(CheckBytes(bytes));
  file = Descriptor(memfd_create("mydist-ps-window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return NoWindow("make a window of shared memory", errno);
  const SignalBlock block;  // A signal would interrupt the next call.
  if (fallocate(file.number(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return NoWindow("reserve " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  if (fcntl(file.number(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return NoWindow("fix the size of a window of shared memory", errno);
  }
  return MapFile(file, bytes);
}

Result<std::shared_ptr<Window>> Window::Map(const Descriptor& file, uint64_t bytes) {
  MYDIST_RETURN_IF_ERROR(CheckBytes(bytes));
  const int seals = fcntl(file.number(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return Status::Internal("the file of the window could become shorter");
  }
  struct stat info {};
  if (fstat(file.number(), &info) != 0) return NoWindow("look at the file of a window", errno);
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return Status::Internal("the file of the window has " + std::to_string(info.st_size) +
                            " bytes, expected " + std::to_string(bytes));
  }
  return MapFile(file, bytes);
}

Window::~Window() { munmap(memory_.data(), memory_.size()); }

}  // namespace mydist::ps
