#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "controller/messages/wire.h"
#include "world/progress.h"

namespace mydist {

namespace {

void WriteError(Writer& writer, const StreamItem& item) {
  writer.U8(static_cast<uint8_t>(item.code));
  writer.String(item.name, kMaxNameBytes);
  writer.String(item.text, kMaxTextBytes);
  writer.String(item.hint, kMaxTextBytes);
  writer.Count(item.groups.size());
  for (const std::string& group : item.groups) writer.String(group, kMaxNameBytes);
  WriteRanks(writer, item.ranks);
  WriteRanks(writer, item.missing);
  writer.U8(static_cast<uint8_t>(item.op));
}

void ReadError(Reader& reader, StreamItem& item) {
  const uint8_t code = reader.U8();
  if (code < 1 || code > static_cast<uint8_t>(StatusCode::kInternal)) {
    reader.Fail("status code " + std::to_string(code) + " is unknown");
  }
  item.code = static_cast<StatusCode>(code);
  item.name = reader.String(kMaxNameBytes);
  item.text = reader.String(kMaxTextBytes);
  item.hint = reader.String(kMaxTextBytes);
  const size_t group_count = reader.Count(sizeof(uint32_t));
  for (size_t i = 0; i < group_count && reader.ok(); ++i) {
    item.groups.push_back(reader.String(kMaxNameBytes));
  }
  item.ranks = ReadRanks(reader);
  item.missing = ReadRanks(reader);
  const uint8_t op = reader.U8();
  if (const auto known = OpKindFromWire(op)) {
    item.op = *known;
  } else {
    reader.Fail("operation " + std::to_string(op) + " of an error is unknown");
  }
}

void WriteItem(Writer& writer, const StreamItem& item) {
  writer.U8(static_cast<uint8_t>(item.kind));
  if (ConcernsProcessSet(item.kind)) writer.I32(item.process_set);
  switch (item.kind) {
    case StreamKind::kReadySlot:
    case StreamKind::kInvalidate:
      return writer.U32(item.slot);
    case StreamKind::kReadyAgreement:
      WriteRequest(writer, item.agreement->request);
      return WriteFirstDims(writer, item.agreement->first_dims);
    case StreamKind::kError:
      return WriteError(writer, item);
    case StreamKind::kStall:
      writer.String(item.name, kMaxNameBytes);
      writer.String(item.text, kMaxTextBytes);
      return WriteRanks(writer, item.missing);
    case StreamKind::kDeparted:
      writer.I32(item.rank);
      return writer.String(item.text, kMaxTextBytes);
    case StreamKind::kAllJoined:
      return writer.I32(item.rank);
    case StreamKind::kTimelineStart:
      return writer.U8(item.flag ? 1 : 0);
    case StreamKind::kFreeze:
      writer.U32(item.frozen.length);
      writer.U32(item.frozen.repeats);
      return writer.U64(item.frozen.hash);
    case StreamKind::kBoundary:
    case StreamKind::kFinished:
    case StreamKind::kTimelineStop:
    case StreamKind::kThaw:
      return;
  }
}

StreamItem ReadItem(Reader& reader) {
  StreamItem item;
  const uint8_t kind = reader.U8();
  if (kind >= kStreamKindCount) {
    reader.Fail("stream item kind " + std::to_string(kind) + " is unknown");
    return item;
  }
  item.kind = static_cast<StreamKind>(kind);
  if (ConcernsProcessSet(item.kind)) item.process_set = reader.I32();
  switch (item.kind) {
    case StreamKind::kReadySlot:
    case StreamKind::kInvalidate:
      item.slot = reader.U32();
      break;
    case StreamKind::kReadyAgreement: {
      Agreement agreement;
      agreement.request = ReadRequest(reader);
      agreement.first_dims = ReadFirstDims(reader);
      item.agreement = std::make_shared<const Agreement>(std::move(agreement));
      break;
    }
    case StreamKind::kError:
      ReadError(reader, item);
      break;
    case StreamKind::kStall:
      item.name = reader.String(kMaxNameBytes);
      item.text = reader.String(kMaxTextBytes);
      item.missing = ReadRanks(reader);
      break;
    case StreamKind::kDeparted:
      item.rank = reader.I32();
      item.text = reader.String(kMaxTextBytes);
      break;
    case StreamKind::kAllJoined:
      item.rank = reader.I32();
      break;
    case StreamKind::kTimelineStart:
      item.flag = reader.Bool();
      break;
    case StreamKind::kFreeze:
      item.frozen.length = reader.U32();
      item.frozen.repeats = reader.U32();
      item.frozen.hash = reader.U64();
      break;
    case StreamKind::kBoundary:
    case StreamKind::kFinished:
    case StreamKind::kTimelineStop:
    case StreamKind::kThaw:
      break;
  }
  return item;
}

}  // namespace

std::vector<Bytes> EncodeSegment(const StreamSegment& segment, size_t target_bytes) {
  std::vector<Bytes> messages;
  size_t next = 0;
  do {
    Writer writer(MessageKind::kSegment);
    writer.U64(segment.start + next);
    const size_t end = std::min(segment.items.size(), next + kMaxEntriesPerMessage);
    const size_t first = next;
    while (next < end && (next == first || writer.size() < target_bytes)) {
      WriteItem(writer, segment.items[next++]);
    }
    messages.push_back(std::move(writer).Take());
  } while (next < segment.items.size());
  return messages;
}

Result<StreamSegment> DecodeSegment(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kSegment));
  StreamSegment segment;
  segment.start = reader.U64();
  while (reader.ok() && !reader.AtEnd()) {
    if (segment.items.size() == kMaxEntriesPerMessage) {
      reader.Fail("it has more than the items allowed");
    }
    segment.items.push_back(ReadItem(reader));
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return segment;
}

Bytes EncodeVote(const VoteWord& word) {
  Writer writer(MessageKind::kVote);
  writer.U32(word.freeze);
  writer.U64(word.ready_count);
  writer.U8(word.is_broken ? 1 : 0);
  return std::move(writer).Take();
}

Result<VoteWord> DecodeVote(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kVote));
  VoteWord word{reader.U32(), reader.U64(), reader.Bool()};
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
  WriteProgress(writer, farewell.progress);
  return std::move(writer).Take();
}

Result<Farewell> DecodeFarewell(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kFarewell));
  Farewell farewell{reader.Bool(), reader.String(kMaxFarewellBytes)};
  farewell.progress = ReadProgress(reader);
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return farewell;
}

Bytes EncodeQuestion(const Question& question) {
  Writer writer(MessageKind::kQuestion);
  writer.U32(question.number);
  writer.I32(question.process_set);
  writer.String(question.tensor, kMaxNameBytes);
  return std::move(writer).Take();
}

Result<Question> DecodeQuestion(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kQuestion));
  Question question{reader.U32(), reader.I32(), reader.String(kMaxNameBytes)};
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return question;
}

Bytes EncodeAnswer(const Answer& answer) {
  Writer writer(MessageKind::kAnswer);
  writer.U32(answer.number);
  WriteRanks(writer, answer.awaited);
  writer.String(answer.progress.last, kMaxProgressBytes);
  writer.F64(answer.progress.ago);
  return std::move(writer).Take();
}

Result<Answer> DecodeAnswer(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kAnswer));
  Answer answer{reader.U32(), ReadRanks(reader), {}};
  answer.progress = {reader.String(kMaxProgressBytes), reader.F64()};
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return answer;
}

}  // namespace mydist
