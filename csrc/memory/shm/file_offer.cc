#include "memory/shm/file_offer.h"

#include <algorithm>

#include "memory/shm/arena_file.h"

namespace mydist::shm {

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
