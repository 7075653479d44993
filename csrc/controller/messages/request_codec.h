// Request codec: the parts that reports and segments have in common, to bytes and back. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "controller/messages/request.h"
#include "controller/messages/wire.h"

namespace mydist {

void WriteRequest(Writer& writer, const Request& request);
// What it returns passed CheckRequest, or the reader has failed.
Request ReadRequest(Reader& reader);

void WriteRanks(Writer& writer, const std::vector<int32_t>& ranks);
std::vector<int32_t> ReadRanks(Reader& reader);

void WriteFirstDims(Writer& writer, const std::vector<int64_t>& first_dims);
std::vector<int64_t> ReadFirstDims(Reader& reader);  // None negative.

// A reader behind the header of a message of this kind; kVersionMismatch or kInternal.
Result<Reader> OpenMessage(std::span<const uint8_t> message, MessageKind expected);

// Whether a message can carry the request: lengths, dimensions, element count. kInvalidArgument.
Status CheckRequest(const Request& request);

}  // namespace mydist
