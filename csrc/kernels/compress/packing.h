// Codes of 1 to 8 bits without gaps between them. Part of the codecs' files only.
// Up to 512 codes are a group. Of a code's bits, 4, 2 and 1 travel as parts, as far as its number
// of bits has them; 8 bits are a byte. A part of a group has M bytes, and byte j has the codes j,
// j+M, j+2M, …: so packing moves whole words and no bit across them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/loop.h"

namespace mydist {

constexpr size_t kGroup = 512;

// A byte for each code. Those that are not used are 0.
struct alignas(64) Codes {
  uint8_t bytes[kGroup];
};

// Of one part, which has `width` bits of each code.
constexpr size_t PartBytes(size_t count, size_t width) { return (count * width + 7) / 8; }

constexpr size_t GroupBytes(size_t count, size_t bits) {
  return PartBytes(count, bits & 8) + PartBytes(count, bits & 4) + PartBytes(count, bits & 2) +
         PartBytes(count, bits & 1);
}

// Of so many codes in groups, of which only the last may be smaller.
constexpr size_t PackedBytes(size_t count, size_t bits) {
  return count / kGroup * (kGroup / 8) * bits + GroupBytes(count % kGroup, bits);
}

// Of a part as whole words of 8 bytes, of so many packed ones.
template <size_t kWidth>
MYDIST_LOOP_PART void PackWords(const Codes& codes, size_t words, size_t shift,
                                uint8_t* __restrict out) {
  constexpr uint64_t kMask = 0x0101010101010101u * ((1u << kWidth) - 1);
  for (size_t j = 0; j < words; ++j) {
    uint64_t packed = 0;
    for (size_t k = 0; k < 8 / kWidth; ++k) {
      uint64_t word = 0;
      std::memcpy(&word, codes.bytes + (k * words + j) * 8, 8);
      packed |= ((word >> shift) & kMask) << (k * kWidth);
    }
    std::memcpy(out + j * 8, &packed, 8);
  }
}

template <size_t kWidth>
MYDIST_LOOP_PART void UnpackWords(const uint8_t* __restrict packed, size_t words, size_t shift,
                                  Codes& codes) {
  constexpr uint64_t kMask = 0x0101010101010101u * ((1u << kWidth) - 1);
  for (size_t k = 0; k < 8 / kWidth; ++k) {
    for (size_t j = 0; j < words; ++j) {
      uint64_t word = 0;
      uint64_t parts = 0;
      std::memcpy(&parts, packed + j * 8, 8);
      std::memcpy(&word, codes.bytes + (k * words + j) * 8, 8);
      word |= ((parts >> (k * kWidth)) & kMask) << shift;
      std::memcpy(codes.bytes + (k * words + j) * 8, &word, 8);
    }
  }
}

// Bits shift … shift + kWidth − 1 of each code.
template <size_t kWidth>
MYDIST_LOOP_PART void PackPart(const Codes& codes, size_t count, size_t shift,
                               uint8_t* __restrict out) {
  if (count == kGroup) {  // A number that the compiler knows.
    PackWords<kWidth>(codes, kGroup * kWidth / 64, shift, out);
  } else if (count % 64 == 0) {
    PackWords<kWidth>(codes, count * kWidth / 64, shift, out);
  } else {
    const size_t bytes = PartBytes(count, kWidth);
    for (size_t j = 0; j < bytes; ++j) {
      uint32_t packed = 0;
      for (size_t k = 0; k < 8 / kWidth; ++k) {
        const uint32_t code = codes.bytes[k * bytes + j];
        packed |= ((code >> shift) & ((1u << kWidth) - 1)) << (k * kWidth);
      }
      out[j] = static_cast<uint8_t>(packed);
    }
  }
}

// Adds these bits to the codes.
template <size_t kWidth>
MYDIST_LOOP_PART void UnpackPart(const uint8_t* __restrict packed, size_t count, size_t shift,
                                 Codes& codes) {
  if (count == kGroup) {
    UnpackWords<kWidth>(packed, kGroup * kWidth / 64, shift, codes);
  } else if (count % 64 == 0) {
    UnpackWords<kWidth>(packed, count * kWidth / 64, shift, codes);
  } else {
    const size_t bytes = PartBytes(count, kWidth);
    for (size_t k = 0; k < 8 / kWidth; ++k) {
      for (size_t j = 0; j < bytes && k * bytes + j < count; ++j) {
        const uint32_t part = (packed[j] >> (k * kWidth)) & ((1u << kWidth) - 1);
        codes.bytes[k * bytes + j] |= static_cast<uint8_t>(part << shift);
      }
    }
  }
}

// Writes GroupBytes(count, bits). `codes` of 8 bits have no others.
MYDIST_LOOP_PART void PackGroup(const Codes& codes, size_t count, size_t bits,
                                uint8_t* __restrict out) {
  size_t shift = 0;
  if (bits == 8) std::memcpy(out, codes.bytes, count);
  if ((bits & 4) != 0) {
    PackPart<4>(codes, count, shift, out);
    out += PartBytes(count, 4);
    shift += 4;
  }
  if ((bits & 2) != 0) {
    PackPart<2>(codes, count, shift, out);
    out += PartBytes(count, 2);
    shift += 2;
  }
  if ((bits & 1) != 0) PackPart<1>(codes, count, shift, out);
}

MYDIST_LOOP_PART void UnpackGroup(const uint8_t* __restrict packed, size_t count, size_t bits,
                                  Codes& codes) {
  size_t shift = 0;
  if (bits == 8) {
    std::memcpy(codes.bytes, packed, count);
    return;
  }
  std::memset(codes.bytes, 0, kGroup);
  if ((bits & 4) != 0) {
    UnpackPart<4>(packed, count, shift, codes);
    packed += PartBytes(count, 4);
    shift += 4;
  }
  if ((bits & 2) != 0) {
    UnpackPart<2>(packed, count, shift, codes);
    packed += PartBytes(count, 2);
    shift += 2;
  }
  if ((bits & 1) != 0) UnpackPart<1>(packed, count, shift, codes);
}

}  // namespace mydist
