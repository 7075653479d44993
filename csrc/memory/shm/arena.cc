#include "memory/shm/arena.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "memory/shm/arena_file.h"
#include "memory/shm/peer_memory.h"
#include "memory/shm/waiter.h"
#include "world/departure.h"

namespace mydist::shm {
namespace {

using Blob = std::vector<uint8_t>;

// First byte of what a rank says; the rest is an offer or a reason.
constexpr uint8_t kAgrees = 'y';
constexpr uint8_t kRefuses = 'n';
// Could not make or open what has no name.
constexpr uint8_t kWantsName = 'w';

Blob Say(uint8_t word, const std::string& text) {
  Blob blob(text.size() + 1, word);
  std::copy(text.begin(), text.end(), blob.begin() + 1);
  return blob;
}

// The text that a rank sent in agreement.
Result<std::string> Agreed(const std::vector<Blob>& blobs, int rank) {
  if (static_cast<size_t>(rank) >= blobs.size() || blobs[static_cast<size_t>(rank)].empty()) {
    return Status::Internal("rank " + std::to_string(rank) + " did not answer");
  }
  const Blob& blob = blobs[static_cast<size_t>(rank)];
  std::string text(blob.begin() + 1, blob.end());
  if (blob.front() == kAgrees) return text;
  return Status::Internal("rank " + std::to_string(rank) + ": " + text);
}

bool WantsName(const Blob& answer) { return !answer.empty() && answer.front() == kWantsName; }

bool AnyWantsName(const std::vector<Blob>& answers) {
  return std::any_of(answers.begin(), answers.end(), WantsName);
}

int64_t RingBytes(const ArenaOptions& options) {
  constexpr int64_t kSmallest = 4 << 10;
  constexpr int64_t kLargest = 64 << 10;
  constexpr int64_t kPerRank = 1 << 20;
  if (options.ring_bytes > 0) return options.ring_bytes;
  return std::clamp(kPerRank / static_cast<int64_t>(options.ranks.size()), kSmallest, kLargest);
}

const Nonce& ThisProcess() {
  static const Nonce kNonce = RandomNonce();
  return kNonce;
}

// Equal shares of what there is, so that ranks that need the same find it alike; together not more
// than address spaces bear.
int64_t ZoneBytes(const ArenaOptions& options) {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  int64_t bytes = options.zone_bytes;
  if (bytes == ArenaOptions::kAutomaticZone) {
    bytes = std::min(ArenaFile::RoomOf(options.directory).tensor_bytes(), kMostBytes) /
            static_cast<int64_t>(options.ranks.size());
  }
  return RoundDown(bytes, kHeapGrainBytes);
}

constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kMaxName = DoneLine::kNameWords * kWordBytes;

}  // namespace

// Arena::Handshake: how the ranks of each host come to one arena, or learn why there is none, in
// rounds of an exchange in which all ranks of the job take part. Lives for one Arena::Establish, in
// its caller's thread. On every rank the same rounds are made, whatever a rank finds.
class Arena::Handshake {
 public:
  // Keeps references to both.
  Handshake(const ArenaOptions& options, const ArenaExchange& exchange)
      : options_(options),
        exchange_(exchange),
        layout_(static_cast<int>(options.ranks.size()), options.slot_bytes, RingBytes(options),
                options.control_bytes),
        own_(Status::Internal("not attached")) {}
  ~Handshake() { RemoveName(); }
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;
  // As Arena::Establish.
  Result<Arena::Establishment> Run() {
    if (IsMaker()) own_ = Begin();
    MYDIST_ASSIGN_OR_RETURN(std::vector<Blob> answers, Meet());
    if (AnyWantsName(answers)) {
      MYDIST_ASSIGN_OR_RETURN(answers, MeetByName(answers));
    }
    for (const int rank : options_.ranks) {
      const Result<std::string> answer = Agreed(answers, rank);
      if (answer.ok()) continue;
      // The ranks of other hosts go on to the last round.
      MYDIST_RETURN_IF_ERROR(exchange_(Blob{}).status());
      return Establishment{nullptr, answer.status().message()};
    }
    std::unique_ptr<Arena> arena = *std::move(own_);
    arena->heap_refusal_ = FirstRefusal(answers);
    if (!arena->heap_refusal_.empty()) arena->heap_.reset();
    // Only after all ranks have attached.
    MYDIST_ASSIGN_OR_RETURN(const std::vector<Blob> probes,
                            exchange_(Say(kAgrees, arena->ProbePeers(options_))));
    arena->attach_refusal_ = FirstRefusal(probes);
    arena->prefers_attach_ = arena->AnyPrefersAttach();
    const bool is_everywhere =
        std::none_of(probes.begin(), probes.end(), [](const Blob& probe) { return probe.empty(); });
    return Establishment{std::move(arena), "", is_everywhere};
  }

 private:
  bool IsMaker() const { return options_.index == 0; }
  int64_t LaterBytes() const {
    return options_.is_control_late ? layout_.bytes() - layout_.ControlMemory() : 0;
  }
  // The maker's: a file without a name, and the name that it would be given.
  Result<std::unique_ptr<Arena>> Begin() {
    ArenaFile::RemoveStaleNames(options_.directory);
    MYDIST_ASSIGN_OR_RETURN(name_, ArenaFile::DrawName());
    MYDIST_ASSIGN_OR_RETURN(
        std::shared_ptr<ArenaFile> file,
        ArenaFile::CreateNameless(options_.directory, layout_.bytes(), LaterBytes()));
    if (file != nullptr) return Make(std::move(file));
    AskForName();
    return Status::Internal(options_.directory + " does not support O_TMPFILE");
  }
  void AskForName() {
    wants_name_ = true;
    // The maker is answered before it makes the file appear: should it die then, this rank lives.
    removes_name_ = true;
  }
  void RemoveName() {
    if (std::exchange(removes_name_, false)) ArenaFile::RemoveName(options_.directory, name_);
  }
  // Two rounds: the maker's offer, and what everybody says to it.
  Result<std::vector<Blob>> Meet() {
    MYDIST_ASSIGN_OR_RETURN(const std::vector<Blob> offers,
                            exchange_(IsMaker() ? Offer() : Blob{}));
    if (!IsMaker()) {
      // Given up before it is opened again: with a descriptor of it, all locks on a file are
      // dropped.
      own_ = Status::Internal("not attached");
      own_ = Accept(offers);
    }
    return exchange_(Answer());
  }
  // The same once more, with a name meanwhile on hosts where `answers` ask for one.
  Result<std::vector<Blob>> MeetByName(const std::vector<Blob>& answers) {
    const bool is_wanted_here =
        std::any_of(options_.ranks.begin(), options_.ranks.end(), [&](int rank) {
          return static_cast<size_t>(rank) < answers.size() &&
                 WantsName(answers[static_cast<size_t>(rank)]);
        });
    if (!is_wanted_here) {
      MYDIST_RETURN_IF_ERROR(exchange_(Blob{}).status());
      return exchange_(Answer());
    }
    removes_name_ = is_by_name_ = true;
    if (IsMaker()) UseName();
    Result<std::vector<Blob>> met = Meet();
    RemoveName();
    return met;
  }
  // The maker's: the file appears under the name.
  void UseName() {
    if (std::exchange(wants_name_, false)) {
      own_ = MakeByName();
    } else if (own_.ok()) {
      if (Status named = (*own_)->file_->GiveName(name_); !named.ok()) own_ = named;
    }
  }
  Result<std::unique_ptr<Arena>> Make(std::shared_ptr<ArenaFile> file) const {
    std::unique_ptr<Arena> arena(new Arena(options_, layout_, std::move(file)));
    arena->header() = {kArenaMagic, RandomNonce(), 0};
    arena->AppendHeap(options_);
    MYDIST_RETURN_IF_ERROR(arena->Enter(options_));
    return arena;
  }
  Result<std::unique_ptr<Arena>> MakeByName() const {
    MYDIST_ASSIGN_OR_RETURN(
        std::shared_ptr<ArenaFile> file,
        ArenaFile::CreateNamed(options_.directory, name_, layout_.bytes(), LaterBytes()));
    return Make(std::move(file));
  }
  // A peer's: what it makes of the offers.
  Result<std::unique_ptr<Arena>> Accept(const std::vector<Blob>& offers) {
    const int maker = options_.ranks.front();
    wants_name_ = false;
    MYDIST_ASSIGN_OR_RETURN(const std::string text, Agreed(offers, maker));
    const std::optional<FileOffer> offer = FileOffer::Decode(text);
    if (!offer || (is_by_name_ ? offer->address != name_ : ArenaFile::IsName(offer->address))) {
      return Status::Internal(
          "rank " + std::to_string(maker) + " sent a malformed address of shared memory (" +
          std::to_string(text.size()) + " bytes); do all ranks run the same build?");
    }
    if (!is_by_name_) name_ = offer->name;
    Result<std::unique_ptr<Arena>> attached = Attach(offer->address, offer->cookie);
    if (!attached.ok() && !is_by_name_) AskForName();
    return attached;
  }
  Result<std::unique_ptr<Arena>> Attach(const std::string& address, const Nonce& cookie) const {
    if (!is_by_name_ && !options_.sees_processes) {
      return Status::Internal("the ranks of this host cannot see each other's processes");
    }
    MYDIST_ASSIGN_OR_RETURN(
        std::shared_ptr<ArenaFile> file,
        ArenaFile::Open(options_.directory, address, layout_.bytes(), LaterBytes()));
    std::unique_ptr<Arena> arena(new Arena(options_, layout_, std::move(file)));
    const ArenaHeader& header = arena->header();
    if (header.magic != kArenaMagic || header.cookie != cookie) {
      return Status::Internal("the shared memory in " + options_.directory +
                              " is not the one that rank " +
                              std::to_string(options_.ranks.front()) +
                              " made (are the ranks in separate containers?): " +
                              ArenaFile::NeededAndFree(options_.directory, layout_.bytes()));
    }
    MYDIST_RETURN_IF_ERROR(arena->Enter(options_));
    return arena;
  }
  Blob Offer() const {
    FileOffer offer{.address = "", .name = name_};
    if (own_.ok()) {
      offer.address = is_by_name_ ? name_ : (*own_)->file_->ProcAddress();
      offer.cookie = (*own_)->header().cookie;
    } else if (!wants_name_) {
      return Say(kRefuses, own_.status().message());
    }
    return Say(kAgrees, offer.Encode());
  }
  Blob Answer() const {
    if (own_.ok()) return Say(kAgrees, (*own_)->heap_refusal_);
    return Say(wants_name_ ? kWantsName : kRefuses, own_.status().message());
  }
  // The first refusal among what the ranks of the host said; none if no rank refuses.
  std::string FirstRefusal(const std::vector<Blob>& answers) const {
    for (const int rank : options_.ranks) {
      const Result<std::string> refusal = Agreed(answers, rank);
      if (!refusal.ok()) return refusal.status().message();
      if (!refusal->empty()) return "rank " + std::to_string(rank) + ": " + *refusal;
    }
    return "";
  }

  const ArenaOptions& options_;
  const ArenaExchange& exchange_;
  const ArenaLayout layout_;
  Result<std::unique_ptr<Arena>> own_;
  // Known to all ranks of the host before any file has it; empty where the maker has told none.
  std::string name_;
  // From before this rank asks for a name, or there may be one, until all have reported.
  bool removes_name_ = false;
  bool is_by_name_ = false;  // The offer at hand is a name.
  bool wants_name_ = false;  // Whether a name might help.
};

Result<Arena::Establishment> Arena::Establish(const ArenaOptions& options,
                                              const ArenaExchange& exchange) {
  return Handshake(options, exchange).Run();
}

void Arena::AppendHeap(const ArenaOptions& options) {
  const int64_t zone_bytes = ZoneBytes(options);
  if (zone_bytes == 0) return;
  const Status extended = file_->Extend(layout_.HeapBase() + zone_bytes * size());
  if (extended.ok()) header().zone_bytes = zone_bytes;
}

Status Arena::NoHeap(int64_t bytes) const {
  if (header().zone_bytes <= 0) {
    // A rank's part of the heap would have been of whole grains.
    return file_->NoRoomForTensors(RoundUp(bytes, kHeapGrainBytes), size());
  }
  return Status::Internal("shared memory holds no tensors: " + heap_refusal_);
}

void Arena::MapHeap() {
  const int64_t zone_bytes = header().zone_bytes;
  if (zone_bytes <= 0) {
    heap_refusal_ = "the file system has no room for them";
    return;
  }
  if ((file_->length_bytes() - layout_.HeapBase()) / size() < zone_bytes) {
    heap_refusal_ =
        "the shared file is shorter than its header says; do all ranks run the same build?";
    return;
  }
  auto heap = ArenaHeap::Map(file_, {layout_.HeapBase(), zone_bytes, size()}, index_);
  if (heap.ok()) {
    heap_ = *std::move(heap);
  } else {
    heap_refusal_ = heap.status().message();
  }
}

std::string Arena::ProbePeers(const ArenaOptions& options) const {
  if (!options.cross_memory_attach.value_or(true)) {
    return "switched off by MYDIST_CROSS_MEMORY_ATTACH";
  }
  for (int peer = 0; peer < size(); ++peer) {
    const RankLine& line = rank_line(peer);
    const std::string refusal = cross_memory::Probe(static_cast<pid_t>(line.pid.load()),
                                                    line.probe_address.load(), line.process);
    if (!refusal.empty()) return Name(peer) + ": " + refusal;
  }
  return "";
}

std::optional<int> Arena::IndexOf(int rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

bool Arena::AnyPrefersAttach() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank_line(rank).prefers_attach.load()) return true;
  }
  return false;
}

bool Arena::SleepersOrder() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (!rank_line(rank).accepts_sleeper_barriers.load()) return false;
  }
  return true;
}

Arena::~Arena() { Leave(""); }

Status Arena::Enter(const ArenaOptions& options) {
  MYDIST_RETURN_IF_ERROR(file_->Lock(index_));
  RankLine& line = rank_line(index_);
  line.pid.store(getpid());
  line.process = ThisProcess();
  line.probe_address.store(cross_memory::ProbeAddress(line.process));
  line.accepts_sleeper_barriers.store(!is_crowded_ && AcceptSleeperBarriers());
  // Slots take a wait for each chunk, and then each wait is a sleep.
  line.prefers_attach.store(is_crowded_ || options.cross_memory_attach.value_or(false));
  line.presence.store(Presence::kHere);
  MapHeap();
  return Status::Ok();
}

void Arena::Leave(const std::string& why) {
  std::atomic<Presence>& presence = rank_line(index_).presence;
  // No rank waits for one that could not enter.
  if (presence.load() != Presence::kHere) return;
  LastWords& words = last_words(index_);
  words.length = static_cast<uint32_t>(std::min(why.size(), words.text.size()));
  std::copy_n(why.begin(), words.length, words.text.begin());
  presence.store(Presence::kLeft);
  for (int peer = 0; peer < size(); ++peer) RingBell(bell(peer));
}

std::string Arena::WhyLeft(int peer) const {
  if (rank_line(peer).presence.load() != Presence::kLeft) return "";
  const LastWords& words = last_words(peer);
  // No more than there is, whatever a peer has written.
  return {words.text.data(), std::min<size_t>(words.length, words.text.size())};
}

Status Arena::CheckPeers(std::span<const int> all, std::span<const int> needed) const {
  for (const int peer : all) {
    if (!IsDead(peer)) continue;
    return Status::PeerLost(Name(peer) +
                            " has died during a collective in shared memory; see its output")
        .About({.finding = kDeadFinding})
        .About(FailureOf(peer));
  }
  for (const int peer : needed) {
    if (rank_line(peer).presence.load() != Presence::kLeft) continue;
    return PeerHasLeft(ranks_[static_cast<size_t>(peer)], Name(peer), WhyLeft(peer));
  }
  return Status::Ok();
}

// In this order: a rank that leaves in between does not count as dead.
bool Arena::IsDead(int peer) const {
  return HasEnded(peer) && rank_line(peer).presence.load() == Presence::kHere;
}

bool Arena::HasEnded(int peer) const { return !LockHolder(peer) && !IsThisProcess(peer); }

bool Arena::IsThisProcess(int peer) const {
  const RankLine& line = rank_line(peer);
  // A forked process has its parent's nonce.
  return line.process == ThisProcess() && line.pid.load() == getpid();
}

Failure Arena::FailureOf(int peer) const {
  const int64_t pid = rank_line(peer).pid.load();
  return {.ranks = {ranks_[static_cast<size_t>(peer)]},
          .host = host_,
          .pid = pid,
          .hosts = {host_},
          .pids = {pid}};
}

std::string Arena::Name(int peer) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(peer)]) + " (host " + host_ +
         ", pid " + std::to_string(rank_line(peer).pid.load()) + ")";
}

// A word that is read acquires the odd version before it, so a reader that got a new word between
// two old ones finds another version at the end.
void WriteDone(DoneLine& line, uint8_t op, uint64_t number, std::string_view name) {
  const uint64_t version = line.version.load(std::memory_order_relaxed);
  name = name.substr(0, kMaxName);
  line.version.store(version + 1, std::memory_order_relaxed);
  line.number.store(number, std::memory_order_release);
  line.op_and_length.store(op | uint64_t{name.size()} << 8, std::memory_order_release);
  for (size_t at = 0; at < name.size(); at += kWordBytes) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + at, std::min(kWordBytes, name.size() - at));
    line.name[at / kWordBytes].store(word, std::memory_order_release);
  }
  line.version.store(version + 2, std::memory_order_release);
}

std::optional<LastDone> ReadDone(const DoneLine& line) {
  const uint64_t version = line.version.load(std::memory_order_acquire);
  if (version == 0) return LastDone();
  const uint64_t op_and_length = line.op_and_length.load(std::memory_order_acquire);
  LastDone done{.op = static_cast<uint8_t>(op_and_length),
                .number = line.number.load(std::memory_order_acquire),
                .name = {},
                .turn = version / 2};
  // No more than there is, whatever a peer has written.
  done.name.resize(std::min<size_t>(op_and_length >> 8, kMaxName));
  for (size_t at = 0; at < done.name.size(); at += kWordBytes) {
    const uint64_t word = line.name[at / kWordBytes].load(std::memory_order_acquire);
    std::memcpy(done.name.data() + at, &word, std::min(kWordBytes, done.name.size() - at));
  }
  const bool is_whole = version % 2 == 0 && line.version.load(std::memory_order_relaxed) == version;
  return is_whole ? std::optional(std::move(done)) : std::nullopt;
}

}  // namespace mydist::shm
