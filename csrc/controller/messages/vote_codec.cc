#include <string>
#include <utility>

#include "controller/messages/message_codec.h"
#include "controller/messages/request_codec.h"
#include "controller/messages/wire.h"

namespace mydist {

Bytes EncodeVote(const VoteWord& word) {
  Writer writer(MessageKind::kVote);
  writer.U32(word.freeze);
  writer.U64(word.ready_count);
  writer.U8(word.is_broken ? 1 : 0);
  return std::move(writer).Take();
}

Result<VoteWord> DecodeVote(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kVote));
  VoteWord word;
  word.freeze = reader.U32();
  word.ready_count = reader.U64();
  word.is_broken = reader.Bool();
  if (word.freeze >> VoteWord::kFreezeBits != 0 || word.ready_count >> VoteWord::kCountBits != 0) {
    reader.Fail("a vote's numbers are out of range");
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return word;
}

Bytes EncodeFarewell(const Farewell& farewell) {
  Writer writer(MessageKind::kFarewell);
  writer.U8(farewell.is_told ? 1 : 0);
  writer.String(farewell.why, kMaxFarewellBytes);
  return std::move(writer).Take();
}

Result<Farewell> DecodeFarewell(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kFarewell));
  Farewell farewell;
  farewell.is_told = reader.Bool();
  farewell.why = reader.String(kMaxFarewellBytes);
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return farewell;
}

}  // namespace mydist
