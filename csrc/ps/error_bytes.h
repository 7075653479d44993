// An error of a server as the payload of its answer, with what is known of it as data. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist::ps {

MYDIST_EXPORT std::vector<uint8_t> EncodeError(const Status& error);
// A peer sent it; `code` as in the frame. kInternal for bytes that are none.
MYDIST_EXPORT Status DecodeError(uint8_t code, std::span<const uint8_t> bytes);

}  // namespace mydist::ps
