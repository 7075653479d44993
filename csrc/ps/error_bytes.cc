#include "ps/error_bytes.h"

#include <string>
#include <utility>

#include "base/bytes.h"

namespace mydist::ps {
namespace {

constexpr size_t kMaxText = 4096;

}  // namespace

std::vector<uint8_t> EncodeError(const Status& error) {
  const Failure& known = error.failure();
  ByteWriter writer;
  for (const std::string* const text : {&error.message(), &known.operation, &known.tensor,
                                        &known.phase, &known.host, &known.finding, &known.hint}) {
    writer.String(*text, kMaxText);
  }
  writer.I64(known.pid);
  writer.Count(known.ranks.size());
  for (const int rank : known.ranks) writer.I32(rank);
  return std::move(writer).Take();
}

Status DecodeError(uint8_t code, std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "error of a parameter server");
  const std::string message = reader.String(kMaxText);
  Failure known;
  for (std::string* const text :
       {&known.operation, &known.tensor, &known.phase, &known.host, &known.finding, &known.hint}) {
    *text = reader.String(kMaxText);
  }
  known.pid = reader.I64();
  const size_t ranks = reader.Count(4);
  for (size_t i = 0; i < ranks; ++i) known.ranks.push_back(reader.I32());
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return Status(static_cast<StatusCode>(code), message).About(known);
}

}  // namespace mydist::ps
