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

#include "base/status.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {

class ArenaFile {
 public:
  // A new file of `bytes` in `directory`, all its pages reserved but those of the last
  // `later_bytes`, that never had a name. Null where the file system cannot do that; kInternal when
  // there is no room, with the bytes needed and free.
  static Result<std::shared_ptr<ArenaFile>> CreateNameless(const std::string& directory,
                                                           int64_t bytes, int64_t later_bytes = 0);
  // The same with a name, which the caller removes, also when this fails. kInternal saying why not.
  static Result<std::shared_ptr<ArenaFile>> CreateNamed(const std::string& directory,
                                                        const std::string& name, int64_t bytes,
                                                        int64_t later_bytes = 0);
  // One that another rank has made, by its ProcAddress() or its name; the first `bytes` are mapped.
  // kInternal unless it is a regular file of our own user and not shorter.
  static Result<std::shared_ptr<ArenaFile>> Open(const std::string& directory,
                                                 const std::string& address, int64_t bytes,
                                                 int64_t later_bytes = 0);
  // A random name, as no file has. kInternal when the kernel has no random numbers.
  static Result<std::string> DrawName();
  // Whether it is one that DrawName may have drawn.
  static bool IsName(const std::string& address);

  // Removes a name, which other ranks may have done.
  static void RemoveName(const std::string& directory, const std::string& name);
  // Removes the names that ranks left when all of them were killed at once: no process has a lock
  // on such a file.
  static void RemoveStaleNames(const std::string& directory);

  // Sizes of a file system; without a limit all of them are the largest integer.
  struct Room {
    int64_t all_bytes = 0;
    int64_t free_bytes = 0;

    // Bytes that tensors leave free for others, above all for the workers of a DataLoader, which
    // pass batches through it: a quarter, at most a few large batches.
    int64_t kept_bytes() const { return std::min(all_bytes / 4, int64_t{1} << 30); }
    int64_t tensor_bytes() const { return std::max<int64_t>(0, free_bytes - kept_bytes()); }
  };
  static Room RoomOf(const std::string& directory);
  // Sizes for the reason why there is no shared memory.
  static std::string NeededAndFree(const std::string& directory, int64_t bytes);

  // Closes the file and drops all locks of this process on it.
  ~ArenaFile();
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;

  // How a process that sees this one opens it: "pid/descriptor".
  std::string ProcAddress() const;
  // Gives a file without a name this one. kInternal where that is not possible.
  Status GiveName(const std::string& name) const;
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
  ArenaFile(int descriptor, std::string directory)
      : descriptor_(descriptor), directory_(std::move(directory)) {}
  static Result<std::shared_ptr<ArenaFile>> Populate(std::shared_ptr<ArenaFile> file, int64_t bytes,
                                                     int64_t later_bytes);
  Status Map(int64_t bytes, int64_t later_bytes);

  const int descriptor_;
  const std::string directory_;
  uint8_t* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// FileOffer: what the rank that makes an arena's file tells the others of its host, as text. Pure.
// Lines: where the file is, its name, and its cookie, which is any bytes.
struct FileOffer {
  std::string address;  // Empty: nowhere yet.
  std::string name;
  Nonce cookie{};

  std::string Encode() const;
  // A peer sent it. Nothing unless it has these parts.
  static std::optional<FileOffer> Decode(const std::string& text);

  bool operator==(const FileOffer&) const = default;
};

}  // namespace mydist::shm
