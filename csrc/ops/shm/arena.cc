#include "ops/shm/arena.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/departure.h"
#include "ops/shm/bell.h"
#include "ops/shm/cross_memory.h"
#include "ops/shm/waking.h"

namespace mydist::shm {
namespace {

using Blob = std::vector<uint8_t>;

// First byte of what a rank says in the handshake; the rest is an offer or a reason.
constexpr uint8_t kAgrees = 'y';
constexpr uint8_t kRefuses = 'n';
// Could not open what has no name.
constexpr uint8_t kWantsName = 'w';

Nonce RandomNonce() {
  Nonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    // Unlikely enough to be told apart by the pid alone.
    const int64_t pid = getpid();
    std::memcpy(nonce.data(), &pid, sizeof pid);
  }
  return nonce;
}

const Nonce& ThisProcess() {
  static const Nonce kNonce = RandomNonce();
  return kNonce;
}

Blob Say(uint8_t word, const std::string& text) {
  Blob blob(text.size() + 1, word);
  std::copy(text.begin(), text.end(), blob.begin() + 1);
  return blob;
}

// What a rank said in agreement.
Result<std::string> Agreed(const std::vector<Blob>& blobs, int rank) {
  if (static_cast<size_t>(rank) >= blobs.size() || blobs[static_cast<size_t>(rank)].empty()) {
    return Status::Internal("rank " + std::to_string(rank) + " did not answer");
  }
  const Blob& blob = blobs[static_cast<size_t>(rank)];
  std::string text(blob.begin() + 1, blob.end());
  if (blob.front() == kAgrees) return text;
  return Status::Internal("rank " + std::to_string(rank) + ": " + text);
}

int64_t RingBytes(const ArenaOptions& options) {
  constexpr int64_t kSmallest = 4 << 10;
  constexpr int64_t kLargest = 64 << 10;
  constexpr int64_t kPerRank = 1 << 20;
  if (options.ring_bytes > 0) return options.ring_bytes;
  return std::clamp(kPerRank / static_cast<int64_t>(options.ranks.size()), kSmallest, kLargest);
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
  return bytes / kHeapGrainBytes * kHeapGrainBytes;
}

// The file's address and its cookie.
std::string OfferOf(const std::string& address, const Nonce& cookie) {
  return address + '\n' + std::string(cookie.begin(), cookie.end());
}

std::string AddressIn(const std::string& offer) { return offer.substr(0, offer.find('\n')); }

bool AnyWantsName(const std::vector<Blob>& answers) {
  return std::any_of(answers.begin(), answers.end(), [](const Blob& answer) {
    return !answer.empty() && answer.front() == kWantsName;
  });
}

}  // namespace

Result<std::vector<Blob>> Arena::Offer(const ArenaOptions& options, const ArenaLayout& layout,
                                       const ArenaExchange& exchange,
                                       Result<std::unique_ptr<Arena>>& own) {
  Blob word;
  if (options.index == 0) {
    word = own.ok() ? Say(kAgrees, (*own)->Address()) : Say(kRefuses, own.status().message());
  }
  const Result<std::vector<Blob>> offers = exchange(word);
  if (!offers.ok()) {
    if (own.ok()) ArenaFile::Unlink(options.directory, (*own)->file_->address());
    return offers.status();
  }
  const Result<std::string> offer = Agreed(*offers, options.ranks.front());
  if (options.index != 0) {
    // Given up before it is opened again: with a descriptor of it, all locks on a file are dropped.
    own = offer.ok() ? Status::Internal("not attached") : offer.status();
    if (offer.ok()) own = Attach(options, layout, *offer);
  }
  const bool is_nameless = offer.ok() && !ArenaFile::IsName(AddressIn(*offer));
  const uint8_t refusal = is_nameless ? kWantsName : kRefuses;
  auto answers = exchange(own.ok() ? Say(kAgrees, (*own)->heap_refusal_)
                                   : Say(refusal, own.status().message()));
  // By everybody: should the maker have died, nothing is left behind.
  if (offer.ok()) ArenaFile::Unlink(options.directory, AddressIn(*offer));
  return answers;
}

Result<Arena::Establishment> Arena::Establish(const ArenaOptions& options,
                                              const ArenaExchange& exchange) {
  const ArenaLayout layout(static_cast<int>(options.ranks.size()), options.slot_bytes,
                           RingBytes(options), options.control_bytes);
  Result<std::unique_ptr<Arena>> own = Status::Internal("not attached");
  if (options.index == 0) own = Make(options, layout);
  Result<std::vector<Blob>> answers = Offer(options, layout, exchange, own);
  if (answers.ok() && AnyWantsName(*answers)) {
    if (options.index == 0 && own.ok()) {
      if (Status named = (*own)->file_->GiveName(); !named.ok()) own = named;
    }
    answers = Offer(options, layout, exchange, own);
  }
  if (!answers.ok()) return answers.status();
  for (const int rank : options.ranks) {
    const Result<std::string> answer = Agreed(*answers, rank);
    if (answer.ok()) continue;
    // The ranks of other hosts go on to the third round.
    if (auto probes = exchange(Blob{}); !probes.ok()) return probes.status();
    return Establishment{nullptr, answer.status().message()};
  }
  std::unique_ptr<Arena> arena = *std::move(own);
  arena->heap_refusal_ = arena->FirstRefusal(*answers);
  if (!arena->heap_refusal_.empty()) arena->heap_.reset();
  // Not before everybody is known to be there.
  const Result<std::vector<Blob>> probes = exchange(Say(kAgrees, arena->ProbePeers(options)));
  if (!probes.ok()) return probes.status();
  arena->attach_refusal_ = arena->FirstRefusal(*probes);
  arena->prefers_attach_ = arena->AnyPrefersAttach();
  const bool is_everywhere =
      std::none_of(probes->begin(), probes->end(), [](const Blob& probe) { return probe.empty(); });
  return Establishment{std::move(arena), "", is_everywhere};
}

Result<std::unique_ptr<Arena>> Arena::Make(const ArenaOptions& options, const ArenaLayout& layout) {
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<ArenaFile> file,
                          ArenaFile::Create(options.directory, layout.bytes()));
  std::unique_ptr<Arena> arena(new Arena(options, layout, std::move(file)));
  arena->header() = {kArenaMagic, RandomNonce(), 0};
  arena->AppendHeap(options);
  if (Status entered = arena->Enter(options); !entered.ok()) {
    ArenaFile::Unlink(options.directory, arena->file_->address());
    return entered;
  }
  return arena;
}

Result<std::unique_ptr<Arena>> Arena::Attach(const ArenaOptions& options, const ArenaLayout& layout,
                                             const std::string& offer) {
  if (!options.sees_processes && !ArenaFile::IsName(AddressIn(offer))) {
    return Status::Internal("the ranks of this host do not see each other's processes");
  }
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<ArenaFile> file,
                          ArenaFile::Open(options.directory, AddressIn(offer), layout.bytes()));
  std::unique_ptr<Arena> arena(new Arena(options, layout, std::move(file)));
  const ArenaHeader& header = arena->header();
  if (header.magic != kArenaMagic || offer != OfferOf(AddressIn(offer), header.cookie)) {
    return Status::Internal("the shared memory in " + options.directory +
                            " is not the one that rank " + std::to_string(options.ranks.front()) +
                            " has made (containers that do not share it?)");
  }
  MYDIST_RETURN_IF_ERROR(arena->Enter(options));
  return arena;
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
    const int64_t grains = (bytes + kHeapGrainBytes - 1) / kHeapGrainBytes;
    return file_->NoRoomForTensors(grains * kHeapGrainBytes, size());
  }
  return Status::Internal("no tensors lie in the memory that the ranks share: " + heap_refusal_);
}

void Arena::MapHeap() {
  const int64_t zone_bytes = header().zone_bytes;
  if (zone_bytes <= 0) {
    heap_refusal_ = "the file system has no room for any";
    return;
  }
  if ((file_->length_bytes() - layout_.HeapBase()) / size() < zone_bytes) {
    heap_refusal_ = "the file is shorter than its header says";
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
  if (options.cross_memory_attach == CrossMemoryAttach::kOff)
    return "switched off by MYDIST_CROSS_MEMORY_ATTACH";
  for (int peer = 0; peer < size(); ++peer) {
    const RankLine& line = rank_line(peer);
    const std::string refusal = cross_memory::Probe(static_cast<pid_t>(line.pid.load()),
                                                    line.probe_address.load(), line.process);
    if (!refusal.empty()) return "to " + Name(peer) + ": " + refusal;
  }
  return "";
}

std::string Arena::FirstRefusal(const std::vector<Blob>& answers) const {
  for (const int rank : ranks_) {
    const Result<std::string> refusal = Agreed(answers, rank);
    if (!refusal.ok()) return refusal.status().message();
    if (!refusal->empty()) return "rank " + std::to_string(rank) + ": " + *refusal;
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

std::string Arena::Address() const { return OfferOf(file_->address(), header().cookie); }

Status Arena::Enter(const ArenaOptions& options) {
  MYDIST_RETURN_IF_ERROR(file_->Lock(index_));
  RankLine& line = rank_line(index_);
  line.pid.store(getpid());
  line.process = ThisProcess();
  line.probe_address.store(cross_memory::ProbeAddress(line.process));
  line.accepts_sleeper_barriers.store(!is_crowded_ && AcceptSleeperBarriers());
  // Slots take a wait for each chunk, and then each wait is a sleep.
  line.prefers_attach.store(is_crowded_ || options.cross_memory_attach == CrossMemoryAttach::kOn);
  line.presence.store(Presence::kHere);
  MapHeap();
  return Status::Ok();
}

void Arena::Leave(const std::string& why) {
  std::atomic<Presence>& presence = rank_line(index_).presence;
  // One that could not enter has nobody waiting for it.
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
                            " has died while it is needed to move a tensor through shared memory; "
                            "its output says why");
  }
  for (const int peer : needed) {
    if (rank_line(peer).presence.load() != Presence::kLeft) continue;
    return PeerHasLeft(Name(peer), WhyLeft(peer));
  }
  return Status::Ok();
}

// In this order: one that leaves in between is not taken for dead.
bool Arena::IsDead(int peer) const {
  return HasEnded(peer) && rank_line(peer).presence.load() == Presence::kHere;
}

bool Arena::HasEnded(int peer) const { return !LockHolder(peer) && !IsThisProcess(peer); }

bool Arena::IsThisProcess(int peer) const {
  const RankLine& line = rank_line(peer);
  // A forked process has its parent's nonce.
  return line.process == ThisProcess() && line.pid.load() == getpid();
}

std::string Arena::Name(int peer) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(peer)]) + " (host " + host_ +
         ", pid " + std::to_string(rank_line(peer).pid.load()) + ")";
}

}  // namespace mydist::shm
