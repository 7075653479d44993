// FileOffer: what the rank that makes an arena's file tells the others of its host, as text. Pure.
// Lines: where the file is, its name, and its cookie, which is any bytes.
#pragma once

#include <optional>
#include <string>

#include "memory/shm/arena_layout.h"

namespace mydist::shm {

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
