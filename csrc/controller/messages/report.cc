#include <algorithm>
#include <utility>

#include "controller/messages/report.h"
#include "controller/messages/wire.h"
#include "controller/response_cache.h"
#include "world/process_set.h"

namespace mydist {

namespace {

Status WrongReport(const Request& request, const std::string& what) {
  return Status::Internal("a report about tensor '" + request.name + "' " + what);
}

// Ascending, without duplicates, all in the lane.
bool AreRanksOf(const Lane& lane, const std::vector<int32_t>& ranks) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), [](int32_t a, int32_t b) {
                           return a >= b;
                         }) == ranks.end();
  return ascending &&
         std::includes(lane.ranks.begin(), lane.ranks.end(), ranks.begin(), ranks.end());
}

Status CheckAgreed(const Readiness& readiness, const Lane& lane) {
  const bool gathers = GathersRows(readiness.request().op);
  const size_t expected = gathers ? lane.ranks.size() : 0;
  if (readiness.first_dims.size() != expected) {
    return WrongReport(readiness.request(), "has " + std::to_string(readiness.first_dims.size()) +
                                                " first dimensions, expected " +
                                                std::to_string(expected));
  }
  if (!readiness.variants.front().ranks.empty() || readiness.unlisted_rank_count != 0) {
    return WrongReport(readiness.request(), "lists ranks although all ranks agree");
  }
  return Status::Ok();
}

bool AnyAgree(const std::vector<Variant>& variants) {
  for (size_t i = 0; i < variants.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Agree(variants[i].request, variants[j].request)) return true;
    }
  }
  return false;
}

Status CheckDisagreed(const Readiness& readiness, const Lane& lane) {
  if (!readiness.first_dims.empty()) {
    return WrongReport(readiness.request(), "has first dimensions although the ranks disagree");
  }
  size_t rank_count = 0;
  for (const Variant& variant : readiness.variants) {
    if (variant.ranks.empty() || !AreRanksOf(lane, variant.ranks)) {
      return WrongReport(readiness.request(), "lists ranks outside the sender's subtree");
    }
    rank_count += variant.ranks.size();
  }
  if (AnyAgree(readiness.variants)) {
    return WrongReport(readiness.request(), "lists the same request as two different ones");
  }
  const int64_t unlisted = readiness.unlisted_rank_count;
  // Fewer than all: those that have joined, or have no part in a send/recv, made no request.
  if (unlisted < 0 || rank_count + static_cast<uint64_t>(unlisted) > lane.ranks.size()) {
    return WrongReport(readiness.request(), "counts more ranks than the sender's subtree has");
  }
  return Status::Ok();
}

// Every rank has to see the item, and the global set is always there.
Status CheckChange(const Request& request, const ProcessSet& set) {
  if (!ChangesProcessSets(request.op)) return Status::Ok();
  const bool adds = request.op == OpKind::kAddProcessSet;
  if (adds == (set.id == kGlobalProcessSet)) return Status::Ok();
  return Status::InvalidArgument(CallText(request) + " is for process set " +
                                 std::to_string(set.id) +
                                 (adds ? ", expected set 0, because every rank has to take part."
                                       : ", which cannot be removed."));
}

}  // namespace

Status CheckSpeaker(const Report& report, const Lane& lane) {
  const auto check = [&](int32_t rank, const char* what) {
    if (std::binary_search(lane.ranks.begin(), lane.ranks.end(), rank)) return Status::Ok();
    return Status::Internal("it reports that rank " + std::to_string(rank) + " has " + what +
                            ", but that rank is not in the sender's subtree (" +
                            RankListText(lane.ranks) + ")");
  };
  for (const int32_t rank : report.joins) MYDIST_RETURN_IF_ERROR(check(rank, "joined"));
  for (const Departure& departure : report.departures) {
    MYDIST_RETURN_IF_ERROR(check(departure.rank, "left"));
  }
  for (const ThawNote& note : report.thaws) {
    MYDIST_RETURN_IF_ERROR(check(note.rank, note.is_done ? "thawed" : "asked for a thaw"));
  }
  return Status::Ok();
}

Status CheckReadiness(const Readiness& readiness, const Lane& lane, ProcessSetId process_set) {
  for (const Variant& variant : readiness.variants) {
    if (variant.request.name != readiness.name()) {
      return WrongReport(readiness.request(), "also names tensor '" + variant.request.name + "'");
    }
    if (variant.request.process_set != process_set) {
      return WrongReport(readiness.request(), "is for process set " +
                                                  std::to_string(variant.request.process_set) +
                                                  ", expected " + std::to_string(process_set));
    }
  }
  return readiness.agreed() ? CheckAgreed(readiness, lane) : CheckDisagreed(readiness, lane);
}

Status CheckNote(const StallNote& note, const Lane& lane, ProcessSetId process_set) {
  if (note.request.process_set != process_set) {
    return WrongReport(note.request, "is for process set " +
                                         std::to_string(note.request.process_set) + ", expected " +
                                         std::to_string(process_set));
  }
  if (note.missing.empty() || !AreRanksOf(lane, note.missing)) {
    return WrongReport(note.request, "lists ranks outside the sender's subtree as missing");
  }
  return Status::Ok();
}

Status CheckRanks(const Request& request, const ProcessSet& set) {
  MYDIST_RETURN_IF_ERROR(CheckChange(request, set));
  const std::vector<int32_t>& ranks = request.ranks;
  const bool pair = request.op == OpKind::kSendReceive;
  const bool adds = request.op == OpKind::kAddProcessSet;
  const bool right_count = pair ? ranks.size() == 2 : adds ? !ranks.empty() : ranks.empty();
  const bool are_members = std::all_of(ranks.begin(), ranks.end(),
                                       [&](int32_t rank) { return set.IndexOf(rank).has_value(); });
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool is_ordered = pair ? ranks.front() != ranks.back() : is_ascending;
  if (HasRoot(request.op) && !set.IndexOf(request.root_rank)) {
    return Status::InvalidArgument(CallText(request) + " has root " +
                                   std::to_string(request.root_rank) +
                                   ", expected a rank of process set " + std::to_string(set.id) +
                                   ". Pass the global rank of a member.");
  }
  if (right_count && are_members && is_ordered) return Status::Ok();
  const std::string expected = pair   ? "two different ranks of process set "
                               : adds ? "ranks in ascending order, each once, of process set "
                                      : "none in process set ";
  return Status::InvalidArgument(CallText(request) + " names " + RankListText(ranks) +
                                 ", expected " + expected + std::to_string(set.id) + ".");
}

bool MatchesAgreement(const Request& request, const Agreement& agreement, int32_t index) {
  if (!Agree(request, agreement.request)) return false;
  if (!GathersRows(request.op)) return true;
  const auto position = static_cast<size_t>(index);
  return position < agreement.first_dims.size() &&
         agreement.first_dims[position] == FirstDimOf(request);
}

namespace {

// What an entry of a report is; a message is its entries up to its end, so it can be cut anywhere
// between two.
enum class EntryKind : uint8_t {
  kReadySlots = 1,
  kInvalidSlot = 2,
  kReadiness = 3,
  kStall = 4,
  kDeparture = 5,
  kTimeline = 6,
  kJoin = 7,
  kThaw = 8,
};

// One bit per slot from the lowest to the highest.
void WriteSlots(Writer& writer, std::span<const uint32_t> slots) {
  writer.U32(slots.front());
  const uint32_t bit_count = slots.back() - slots.front() + 1;
  std::vector<uint8_t> bitmap((bit_count + 7) / 8);
  for (const uint32_t slot : slots) {
    const uint32_t bit = slot - slots.front();
    bitmap[bit / 8] = static_cast<uint8_t>(bitmap[bit / 8] | (1u << (bit % 8)));
  }
  writer.Count(bitmap.size());
  writer.Raw(bitmap);
}

void ReadSlots(Reader& reader, std::vector<uint32_t>& slots) {
  const uint32_t first = reader.U32();
  const auto bitmap = reader.Raw(reader.Count(1));
  if (uint64_t{first} + 8 * uint64_t{bitmap.size()} > kMaxCacheSlots + 8) {
    reader.Fail("a slot number is out of range");
    return;
  }
  if (!slots.empty()) reader.Fail("ready slots are listed twice");
  for (uint32_t bit = 0; bit < 8 * bitmap.size(); ++bit) {
    if ((bitmap[bit / 8] >> (bit % 8)) & 1u) slots.push_back(first + bit);
  }
}

void WriteReadiness(Writer& writer, const Readiness& readiness) {
  writer.Count(readiness.variants.size());
  for (const Variant& variant : readiness.variants) {
    WriteRequest(writer, variant.request);
    WriteRanks(writer, variant.ranks);
  }
  WriteFirstDims(writer, readiness.first_dims);
  writer.I64(readiness.unlisted_rank_count);
}

Readiness ReadReadiness(Reader& reader) {
  constexpr size_t kLeastVariantBytes = 50;
  Readiness readiness;
  const size_t variant_count = reader.Count(kLeastVariantBytes);
  if (variant_count < 1 || variant_count > kMaxVariants) {
    reader.Fail(std::to_string(variant_count) + " variants of a request, expected 1 to " +
                std::to_string(kMaxVariants));
    return readiness;
  }
  for (size_t i = 0; i < variant_count && reader.ok(); ++i) {
    Variant variant;
    variant.request = ReadRequest(reader);
    variant.ranks = ReadRanks(reader);
    readiness.variants.push_back(std::move(variant));
  }
  readiness.first_dims = ReadFirstDims(reader);
  readiness.unlisted_rank_count = reader.I64();
  return readiness;
}

void WriteStall(Writer& writer, const StallNote& note) {
  WriteRequest(writer, note.request);
  WriteRanks(writer, note.missing);
  writer.I64(std::chrono::duration_cast<std::chrono::microseconds>(note.waited).count());
}

StallNote ReadStall(Reader& reader) {
  StallNote note;
  note.request = ReadRequest(reader);
  note.missing = ReadRanks(reader);
  const int64_t waited_us = reader.I64();
  constexpr int64_t kTenYearsUs = int64_t{10} * 366 * 24 * 3600 * 1'000'000;
  if (waited_us < 0 || waited_us > kTenYearsUs) reader.Fail("a waiting time is out of range");
  if (reader.ok()) note.waited = std::chrono::microseconds(waited_us);
  return note;
}

void ReadEntry(Reader& reader, Report& report) {
  const uint8_t kind = reader.U8();
  switch (static_cast<EntryKind>(kind)) {
    case EntryKind::kReadySlots: {
      const ProcessSetId process_set = reader.I32();
      return ReadSlots(reader, report.sets[process_set].ready_slots);
    }
    case EntryKind::kInvalidSlot: {
      const ProcessSetId process_set = reader.I32();
      report.sets[process_set].invalid_slots.push_back(reader.U32());
      return;
    }
    case EntryKind::kReadiness: {
      Readiness readiness = ReadReadiness(reader);
      if (!reader.ok()) return;  // It may be without any request.
      report.sets[readiness.request().process_set].ready_requests.push_back(std::move(readiness));
      return;
    }
    case EntryKind::kStall: {
      StallNote note = ReadStall(reader);
      report.sets[note.request.process_set].stalls.push_back(std::move(note));
      return;
    }
    case EntryKind::kJoin:
      report.joins.push_back(reader.I32());
      return;
    case EntryKind::kThaw: {
      const int32_t rank = reader.I32();
      report.thaws.push_back({rank, reader.Bool(), reader.Bool()});
      return;
    }
    case EntryKind::kDeparture: {
      const int32_t rank = reader.I32();
      report.departures.push_back({rank, reader.String(kMaxTextBytes)});
      return;
    }
    case EntryKind::kTimeline: {
      const bool start = reader.Bool();
      report.timeline.push_back({start, reader.Bool()});
      return;
    }
  }
  reader.Fail("entry kind " + std::to_string(kind) + " is unknown");
}

// Starts a new message whenever the present one has reached the target.
class ReportMessages {
 public:
  ReportMessages(uint32_t number, uint64_t position, size_t target_bytes)
      : next_number_(number), position_(position), target_bytes_(target_bytes) {
    Begin();
  }

  Writer& Entry(EntryKind kind) {
    const bool full =
        writers_.back().size() >= target_bytes_ || entry_count_ == kMaxEntriesPerMessage;
    if (full && entry_count_ > 0) Begin();
    ++entry_count_;
    writers_.back().U8(static_cast<uint8_t>(kind));
    return writers_.back();
  }

  std::vector<Bytes> Take() && {
    std::vector<Bytes> messages;
    for (Writer& writer : writers_) messages.push_back(std::move(writer).Take());
    return messages;
  }

 private:
  void Begin() {
    Writer& writer = writers_.emplace_back(MessageKind::kReport);
    writer.U32(next_number_++);
    writer.U64(position_);
    entry_count_ = 0;
  }

  uint32_t next_number_;
  uint64_t position_;
  size_t target_bytes_;
  std::vector<Writer> writers_;
  size_t entry_count_ = 0;  // In the last message.
};

void WriteSet(ReportMessages& messages, ProcessSetId process_set, const SetReport& set) {
  if (!set.ready_slots.empty()) {
    Writer& writer = messages.Entry(EntryKind::kReadySlots);
    writer.I32(process_set);
    WriteSlots(writer, set.ready_slots);
  }
  for (const uint32_t slot : set.invalid_slots) {
    Writer& writer = messages.Entry(EntryKind::kInvalidSlot);
    writer.I32(process_set);
    writer.U32(slot);
  }
  for (const Readiness& readiness : set.ready_requests) {
    WriteReadiness(messages.Entry(EntryKind::kReadiness), readiness);
  }
  for (const StallNote& note : set.stalls) WriteStall(messages.Entry(EntryKind::kStall), note);
}

}  // namespace

std::vector<Bytes> EncodeReport(const Report& report, size_t target_bytes) {
  ReportMessages messages(report.number, report.stream_position, target_bytes);
  // First: what follows may go to a later message than it, never to an earlier one.
  for (const int32_t rank : report.joins) messages.Entry(EntryKind::kJoin).I32(rank);
  for (const ThawNote& thaw : report.thaws) {
    Writer& writer = messages.Entry(EntryKind::kThaw);
    writer.I32(thaw.rank);
    writer.U8(thaw.is_done ? 1 : 0);
    writer.U8(thaw.was_starved ? 1 : 0);
  }
  for (const auto& [process_set, set] : report.sets) WriteSet(messages, process_set, set);
  for (const Departure& departure : report.departures) {
    Writer& writer = messages.Entry(EntryKind::kDeparture);
    writer.I32(departure.rank);
    writer.String(departure.reason, kMaxTextBytes);
  }
  for (const TimelineControl& control : report.timeline) {
    Writer& writer = messages.Entry(EntryKind::kTimeline);
    writer.U8(control.start ? 1 : 0);
    writer.U8(control.mark_cycles ? 1 : 0);
  }
  return std::move(messages).Take();
}

Result<Report> DecodeReport(std::span<const uint8_t> message) {
  MYDIST_ASSIGN_OR_RETURN(Reader reader, OpenMessage(message, MessageKind::kReport));
  Report report;
  report.number = reader.U32();
  report.stream_position = reader.U64();
  for (size_t count = 0; reader.ok() && !reader.AtEnd(); ++count) {
    if (count == kMaxEntriesPerMessage) reader.Fail("it has more than the entries allowed");
    ReadEntry(reader, report);
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return report;
}

}  // namespace mydist
