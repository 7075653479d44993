// AlignedBytes: like the memory of a GPU: aligned to 256 bytes, and exactly as large as what lies
// in it, so that a sanitizer sees an access beyond.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace mydist::testing {

class AlignedBytes {
 public:
  explicit AlignedBytes(const std::vector<uint8_t>& content)
      : size_(content.size()),
        bytes_(static_cast<uint8_t*>(::operator new (content.size(), std::align_val_t{256}))) {
    if (size_ > 0) std::memcpy(bytes_, content.data(), size_);
  }
  ~AlignedBytes() { ::operator delete (bytes_, std::align_val_t{256}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  uint8_t* data() { return bytes_; }
  std::vector<uint8_t> Content() const { return {bytes_, bytes_ + size_}; }

 private:
  const size_t size_;
  uint8_t* const bytes_;
};

}  // namespace mydist::testing
