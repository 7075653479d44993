#include "engine/flight_recorder.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <tuple>

namespace mydist {
namespace {

constexpr size_t kHalfName = FlightRecord::kNameBytes / 2;
constexpr int kTicketShift = 8;
constexpr uint64_t kWriting = 1;
constexpr size_t kFetchedLines = 3;  // Of a record with a name of up to 64 bytes.

// FNV-1a, as debuggers and other programs can compute it.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return hash;
}

// Words of a record up to the end of its name: what follows is of no interest.
size_t UsedWords(size_t name_bytes) {
  const size_t bytes =
      offsetof(FlightRecord, name) + std::min(name_bytes, FlightRecord::kNameBytes);
  return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

constexpr size_t WordAt(size_t offset) { return offset / sizeof(uint64_t); }

}  // namespace

std::string FlightRecord::NameText() const {
  if (!is_name_cut()) return {name.data(), name_bytes};
  return std::string(name.data(), kHalfName) + "…" + std::string(&name[kHalfName], kHalfName);
}

void FlightRecorder::Unmap::operator()(Slot* slots) const {
  munmap(slots, kCapacity * sizeof(Slot));
}

FlightRecorder::Ring FlightRecorder::MapRing() {
  static_assert(std::is_trivially_destructible_v<Slot>);
  void* const pages = mmap(nullptr, kCapacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  auto* const slots = static_cast<Slot*>(pages);
  std::uninitialized_default_construct_n(slots, kCapacity);
  return Ring(slots);
}

FlightRecorder::FlightRecorder() : slots_(MapRing()) {}

int64_t FlightRecorder::Submitted(const Request& request, TimePoint now) {
  FlightRecord record;
  record.submitted_ns = ToNanoseconds(now);
  record.process_set = request.process_set;
  record.root = HasRoot(request.op) ? request.root_rank : -1;
  if (request.op == OpKind::kSendReceive && request.ranks.size() == 2) {
    record.root = request.ranks[0];
    record.receiver = request.ranks[1];
  }
  record.device = request.device;
  record.op = static_cast<uint8_t>(request.op);
  record.dtype = static_cast<uint8_t>(request.dtype);
  record.reduce_op = static_cast<uint8_t>(request.reduce_op);
  const std::vector<int64_t>& dims = request.shape.dims();
  record.dim_count = static_cast<uint8_t>(std::min<size_t>(dims.size(), 255));
  std::copy_n(dims.begin(), std::min(dims.size(), FlightRecord::kMaxDims), record.dims.begin());
  // Without the checks of ElementCount, which divide: Engine::Submit gets none but sound shapes.
  uint64_t count = 1;
  for (const int64_t dim : dims) count *= static_cast<uint64_t>(dim);
  record.element_count = static_cast<int64_t>(count);
  return Add(record, request.name);
}

int64_t FlightRecorder::Joined(TimePoint now) {
  FlightRecord record;
  record.submitted_ns = ToNanoseconds(now);
  record.op = FlightRecord::kJoin;
  return Add(record, "join");
}

int64_t FlightRecorder::Add(FlightRecord& record, std::string_view name) {
  record.name_bytes = static_cast<uint16_t>(std::min<size_t>(name.size(), UINT16_MAX));
  if (record.is_name_cut()) {
    record.name_hash = HashOf(name);
    std::memcpy(record.name.data(), name.data(), kHalfName);
    std::memcpy(&record.name[kHalfName], &name[name.size() - kHalfName], kHalfName);
  } else {
    std::memcpy(record.name.data(), name.data(), name.size());
  }
  const int64_t number = next_.fetch_add(1, std::memory_order_relaxed) + 1;
  record.number = number;
  Slot& slot = SlotOf(number);
  const uint64_t claimed = (static_cast<uint64_t>(number) << kTicketShift) | kWriting;
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  // A thread that slept here for a whole round of the ring must not write over its successor.
  if ((version & kWriting) != 0 || version > claimed ||
      !slot.version.compare_exchange_strong(version, claimed, std::memory_order_acq_rel)) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return kNoRecord;
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&record);
  const size_t count = UsedWords(record.name_bytes);
  for (size_t i = 0; i < count; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    slot.words[i].store(word, std::memory_order_release);
  }
  slot.version.store(claimed + 1, std::memory_order_release);
  // The ring is larger than the fastest caches, and the claim of the next slot would wait for it.
  const auto* const next = reinterpret_cast<const char*>(&SlotOf(number + 1));
  for (size_t line = 0; line < kFetchedLines; ++line) __builtin_prefetch(next + 64 * line, 1);
  return number;
}

bool FlightRecorder::Claim(int64_t record, uint64_t* version) {
  if (record == kNoRecord) return false;
  Slot& slot = SlotOf(record);
  *version = slot.version.load(std::memory_order_relaxed);
  if (*version >> kTicketShift != static_cast<uint64_t>(record)) return false;
  if ((*version & kWriting) == 0 && slot.version.compare_exchange_strong(
                                        *version, *version | kWriting, std::memory_order_acq_rel)) {
    return true;
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void FlightRecorder::Begun(int64_t record, int64_t run, TimePoint now) {
  uint64_t version = 0;
  if (!Claim(record, &version)) return;
  Slot& slot = SlotOf(record);
  slot.words[WordAt(offsetof(FlightRecord, run))].store(static_cast<uint64_t>(run),
                                                        std::memory_order_release);
  slot.words[WordAt(offsetof(FlightRecord, begun_ns))].store(
      static_cast<uint64_t>(ToNanoseconds(now)), std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

void FlightRecorder::Ended(int64_t record, StatusCode code, TimePoint now) {
  uint64_t version = 0;
  if (!Claim(record, &version)) return;
  Slot& slot = SlotOf(record);
  slot.words[WordAt(offsetof(FlightRecord, ended_ns))].store(
      static_cast<uint64_t>(ToNanoseconds(now)), std::memory_order_release);
  // The word with the code has op, dtype and name_bytes besides.
  constexpr size_t kWord = WordAt(offsetof(FlightRecord, op));
  static_assert(kWord == WordAt(offsetof(FlightRecord, code)));
  const uint64_t old_word = slot.words[kWord].load(std::memory_order_relaxed);
  std::array<uint8_t, sizeof(uint64_t)> bytes;
  std::memcpy(bytes.data(), &old_word, bytes.size());
  bytes[offsetof(FlightRecord, code) % sizeof(uint64_t)] = static_cast<uint8_t>(code);
  uint64_t word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  slot.words[kWord].store(word, std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

bool FlightRecorder::Copy(const Slot& slot, FlightRecord* record) {
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version == 0 || (version & kWriting) != 0) return false;
  std::array<uint64_t, kWords> words;
  // With acquire a word of a later writer shows that writer's version below.
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != version) return false;
  std::memcpy(static_cast<void*>(record), words.data(), sizeof(FlightRecord));
  if (record->ended_ns != 0) {
    record->state = record->code == 0 ? FlightState::kDone : FlightState::kFailed;
  } else if (record->begun_ns != 0) {
    record->state = FlightState::kRunning;
  }
  return true;
}

bool FlightRecorder::CopyAtLast(const Slot& slot, FlightRecord* record) {
  constexpr int kTries = 10;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (Copy(slot, record)) return true;
  }
  return false;
}

std::vector<FlightRecord> FlightRecorder::Read() const {
  std::vector<FlightRecord> records;
  records.reserve(kCapacity);
  for (size_t i = 0; i < kCapacity; ++i) {
    FlightRecord record;
    if (CopyAtLast(slots_[i], &record)) records.push_back(record);
  }
  std::sort(records.begin(), records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.number < b.number; });
  return records;
}

std::optional<FlightRecord> FlightRecorder::LastDone() const {
  // Tensors that were reduced together have ended at the same time.
  const auto place = [](const FlightRecord& record) {
    return std::tuple(record.ended_ns, record.run, record.number);
  };
  std::optional<FlightRecord> last;
  for (size_t i = 0; i < kCapacity; ++i) {
    FlightRecord record;
    if (!CopyAtLast(slots_[i], &record) || record.state != FlightState::kDone) continue;
    if (!last || place(record) > place(*last)) last = record;
  }
  return last;
}

void FlightRecorder::NoteProcessSet(const ProcessSet& set) {
  MutexLock lock(mutex_);
  sets_[set.id].assign(set.ranks.begin(), set.ranks.end());
}

void FlightRecorder::NoteGroup(ProcessSetId number, const std::string& name,
                               const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  sets_[number] = ranks;
  names_[number] = name;
}

std::map<ProcessSetId, std::string> FlightRecorder::GroupNames() const {
  MutexLock lock(mutex_);
  return names_;
}

std::map<ProcessSetId, std::vector<int>> FlightRecorder::ProcessSets() const {
  MutexLock lock(mutex_);
  return sets_;
}

}  // namespace mydist
