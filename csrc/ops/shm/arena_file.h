// ArenaFile: the file behind an arena, mapped. It has no name, so that nothing is left of it
// however its processes end; where a peer cannot reach it through /proc it gets one until all ranks
// have attached. Each rank holds a lock on its byte, which the kernel drops when the process ends.
// Shared by the Arena and the ArenaHeap. Reserve and Release may be called by any thread.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace mydist::shm {

class ArenaFile {
 public:
  // A new file of `bytes` in `directory`, all its pages reserved, without a name where the file
  // system can do that. kInternal saying why not; when there is no room, with the bytes needed and
  // free.
  static Result<std::shared_ptr<ArenaFile>> Create(const std::string& directory, int64_t bytes);
  // One that another rank has made, by its address(); the first `bytes` are mapped. kInternal
  // unless it is a regular file of our own user and not shorter.
  static Result<std::shared_ptr<ArenaFile>> Open(const std::string& directory,
                                                 const std::string& address, int64_t bytes);
  // Removes the name at this address; OK when it is gone already, or when there is none.
  static void Unlink(const std::string& directory, const std::string& address);
  // Whether an address is a name in the directory.
  static bool IsName(const std::string& address);

  // Of a file system; without a limit all of them are the most there could be.
  struct Room {
    int64_t all_bytes = 0;
    int64_t free_bytes = 0;

    // What tensors leave to others, a DataLoader's workers first of all, who hand on batches
    // through it: a quarter, 16 MiB of the 64 MiB of a container, but not more than a few large
    // batches.
    int64_t kept_bytes() const { return std::min(all_bytes / 4, int64_t{1} << 30); }
    int64_t tensor_bytes() const { return std::max<int64_t>(0, free_bytes - kept_bytes()); }
  };
  static Room RoomOf(const std::string& directory);

  // Closes the file and drops all locks of this process on it.
  ~ArenaFile();
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;

  // How another process opens it: a name in the directory, or process and descriptor.
  const std::string& address() const { return address_; }
  // Gives a file without a name a random one. kInternal where that is not possible.
  Status GiveName();
  uint8_t* memory() const { return memory_; }

  // Makes the file this long. The new part has no pages until they are reserved.
  Status Extend(int64_t bytes);
  int64_t length_bytes() const;
  // A part of the file, none of it populated; the caller unmaps it.
  Result<uint8_t*> MapSparse(int64_t offset, int64_t bytes) const;
  // Puts a part of the file at `place`, instead of what is mapped there, so that writes stay in
  // this process. Whether that was possible; may be called in a forked child.
  [[nodiscard]] bool MapPrivate(uint8_t* place, int64_t offset, int64_t bytes) const;
  // Afterwards these bytes can be touched; kInternal with needed and free bytes otherwise.
  Status Reserve(int64_t offset, int64_t bytes) const;
  // What tensors may still take, and what to say when it is too little on each of so many ranks.
  int64_t RoomForTensors() const { return RoomOf(directory_).tensor_bytes(); }
  Status NoRoomForTensors(int64_t bytes, int rank_count) const;
  // Gives whole pages back.
  void Release(int64_t offset, int64_t bytes) const;

  Status Lock(int64_t byte);
  // Which other process holds the lock; 0: one that this process cannot see, or the kernel does not
  // say. Our own do not count.
  std::optional<pid_t> LockHolder(int64_t byte) const;

 private:
  ArenaFile(int descriptor, std::string directory, std::string address)
      : descriptor_(descriptor), directory_(std::move(directory)), address_(std::move(address)) {}
  Status Map(int64_t bytes);

  const int descriptor_;
  const std::string directory_;
  std::string address_;
  uint8_t* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace mydist::shm
