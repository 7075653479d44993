// ArenaFile: the file behind an arena, mapped. Its name is gone once all ranks have attached; each
// rank then holds a lock on its byte, which the kernel drops when the process ends.
// Owned by the Arena; used by whoever drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace mydist::shm {

class ArenaFile {
 public:
  // A new file of `bytes` in `directory`, with a random name, all its pages reserved. kInternal
  // saying why not; when there is no room, with the bytes needed and free.
  static Result<std::unique_ptr<ArenaFile>> Create(const std::string& directory, int64_t bytes);
  // One that another rank has made. kInternal unless it is a regular file of our own user and of
  // this size.
  static Result<std::unique_ptr<ArenaFile>> Open(const std::string& directory,
                                                 const std::string& name, int64_t bytes);
  // Removes the name of an arena; OK when it is gone already. What is no name of an arena is left
  // alone.
  static void Unlink(const std::string& directory, const std::string& name);

  // Closes the file and drops all locks of this process on it.
  ~ArenaFile();
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;

  const std::string& name() const { return name_; }
  uint8_t* memory() const { return memory_; }

  Status Lock(int64_t byte);
  // Whether another process holds the lock; our own do not count.
  bool IsLockedElsewhere(int64_t byte) const;

 private:
  ArenaFile(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}
  Status Map(int64_t bytes);

  const int descriptor_;
  const std::string name_;
  uint8_t* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace mydist::shm
