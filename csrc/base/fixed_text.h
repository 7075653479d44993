// Texts in records that travel, or are shared, as they lie in memory: of a fixed size, ended by a
// zero, and cut where they are longer. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace mydist {

template <size_t kSize>
void PutText(const std::string& text, std::array<char, kSize>& field) {
  field.fill('\0');
  text.copy(field.data(), kSize - 1);
}

// What a peer has sent may lack its end.
template <size_t kSize>
std::string TextOf(const std::array<char, kSize>& field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

}  // namespace mydist
