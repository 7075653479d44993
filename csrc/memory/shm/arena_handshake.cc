#include "memory/shm/arena_handshake.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "memory/shm/fleeting_name.h"

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

// What the maker offers, as lines: where the file is (empty: nowhere yet), its name when it has
// one, and its cookie.
struct FileOffer {
  std::string address;
  std::string name;
  Nonce cookie{};

  std::string Encode() const {
    return address + '\n' + name + '\n' + std::string(cookie.begin(), cookie.end());
  }
  // A peer sent it. Nothing unless it has these parts.
  static std::optional<FileOffer> Decode(const std::string& text) {
    FileOffer offer;
    const size_t address_end = text.find('\n');
    if (address_end == std::string::npos) return std::nullopt;
    const size_t name_end = text.find('\n', address_end + 1);
    if (name_end == std::string::npos) return std::nullopt;
    if (text.size() - name_end - 1 != offer.cookie.size()) return std::nullopt;
    offer.address = text.substr(0, address_end);
    offer.name = text.substr(address_end + 1, name_end - address_end - 1);
    if (!ArenaFile::IsName(offer.name)) return std::nullopt;
    std::copy(text.begin() + static_cast<std::ptrdiff_t>(name_end) + 1, text.end(),
              offer.cookie.begin());
    return offer;
  }
};

}  // namespace

Arena::Handshake::Handshake(const ArenaOptions& options, const ArenaExchange& exchange)
    : options_(options),
      exchange_(exchange),
      layout_(static_cast<int>(options.ranks.size()), options.slot_bytes, RingBytes(options),
              options.control_bytes),
      own_(Status::Internal("not attached")) {}

Result<Arena::Establishment> Arena::Handshake::Run() {
  if (IsMaker()) Begin();
  Result<std::vector<Blob>> answers = Meet();
  if (answers.ok() && AnyWantsName(*answers)) answers = MeetByName(*answers);
  if (!answers.ok()) return answers.status();
  for (const int rank : options_.ranks) {
    const Result<std::string> answer = Agreed(*answers, rank);
    if (answer.ok()) continue;
    // The ranks of other hosts go on to the last round.
    if (auto probes = exchange_(Blob{}); !probes.ok()) return probes.status();
    return Establishment{nullptr, answer.status().message()};
  }
  std::unique_ptr<Arena> arena = *std::move(own_);
  arena->heap_refusal_ = FirstRefusal(*answers);
  if (!arena->heap_refusal_.empty()) arena->heap_.reset();
  // Only after all ranks have attached.
  const Result<std::vector<Blob>> probes = exchange_(Say(kAgrees, arena->ProbePeers(options_)));
  if (!probes.ok()) return probes.status();
  arena->attach_refusal_ = FirstRefusal(*probes);
  arena->prefers_attach_ = arena->AnyPrefersAttach();
  const bool is_everywhere =
      std::none_of(probes->begin(), probes->end(), [](const Blob& probe) { return probe.empty(); });
  return Establishment{std::move(arena), "", is_everywhere};
}

Result<std::vector<Blob>> Arena::Handshake::Meet() {
  const Result<std::vector<Blob>> offers = exchange_(IsMaker() ? Offer() : Blob{});
  if (!offers.ok()) return offers.status();
  if (!IsMaker()) Accept(*offers);
  return exchange_(Answer());
}

Result<std::vector<Blob>> Arena::Handshake::MeetByName(const std::vector<Blob>& answers) {
  const bool is_wanted_here =
      std::any_of(options_.ranks.begin(), options_.ranks.end(), [&](int rank) {
        return static_cast<size_t>(rank) < answers.size() &&
               WantsName(answers[static_cast<size_t>(rank)]);
      });
  if (!is_wanted_here) {
    const Result<std::vector<Blob>> offers = exchange_(Blob{});
    return offers.ok() ? exchange_(Answer()) : offers;
  }
  if (!removal_) removal_.emplace(options_.directory, name_);
  is_by_name_ = true;
  if (IsMaker()) UseName();
  Result<std::vector<Blob>> met = Meet();
  removal_.reset();
  return met;
}

void Arena::Handshake::AskForName() {
  wants_name_ = true;
  // The maker is answered before it makes the file appear: should it die then, this rank lives.
  removal_.emplace(options_.directory, name_);
}

void Arena::Handshake::Begin() {
  Result<std::string> name = ArenaFile::DrawName();
  if (!name.ok()) {
    own_ = name.status();
    return;
  }
  name_ = *std::move(name);
  Result<std::shared_ptr<ArenaFile>> file =
      ArenaFile::CreateNameless(options_.directory, layout_.bytes());
  if (!file.ok()) {
    own_ = file.status();
  } else if (*file == nullptr) {
    own_ = Status::Internal(options_.directory + " does not support O_TMPFILE");
    AskForName();
  } else {
    own_ = Make(*std::move(file));
  }
}

void Arena::Handshake::UseName() {
  if (std::exchange(wants_name_, false)) {
    own_ = MakeByName();
  } else if (own_.ok()) {
    if (Status named = (*own_)->file_->GiveName(name_); !named.ok()) own_ = named;
  }
}

Result<std::unique_ptr<Arena>> Arena::Handshake::MakeByName() const {
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<ArenaFile> file,
                          ArenaFile::CreateNamed(options_.directory, name_, layout_.bytes()));
  return Make(std::move(file));
}

Result<std::unique_ptr<Arena>> Arena::Handshake::Make(std::shared_ptr<ArenaFile> file) const {
  std::unique_ptr<Arena> arena(new Arena(options_, layout_, std::move(file)));
  arena->header() = {kArenaMagic, RandomNonce(), 0};
  arena->AppendHeap(options_);
  MYDIST_RETURN_IF_ERROR(arena->Enter(options_));
  return arena;
}

Blob Arena::Handshake::Offer() const {
  FileOffer offer{.address = "", .name = name_};
  if (own_.ok()) {
    offer.address = is_by_name_ ? name_ : (*own_)->file_->ProcAddress();
    offer.cookie = (*own_)->header().cookie;
  } else if (!wants_name_) {
    return Say(kRefuses, own_.status().message());
  }
  return Say(kAgrees, offer.Encode());
}

Blob Arena::Handshake::Answer() const {
  if (own_.ok()) return Say(kAgrees, (*own_)->heap_refusal_);
  return Say(wants_name_ ? kWantsName : kRefuses, own_.status().message());
}

void Arena::Handshake::Accept(const std::vector<Blob>& offers) {
  const int maker = options_.ranks.front();
  // Given up before it is opened again: with a descriptor of it, all locks on a file are dropped.
  own_ = Status::Internal("not attached");
  wants_name_ = false;
  const Result<std::string> text = Agreed(offers, maker);
  if (!text.ok()) {
    own_ = text.status();
    return;
  }
  const std::optional<FileOffer> offer = FileOffer::Decode(*text);
  if (!offer || (is_by_name_ ? offer->address != name_ : ArenaFile::IsName(offer->address))) {
    own_ = Status::Internal(
        "rank " + std::to_string(maker) + " sent a malformed address of shared memory (" +
        std::to_string(text->size()) + " bytes); do all ranks run the same build?");
    return;
  }
  if (!is_by_name_) name_ = offer->name;
  own_ = Attach(offer->address, offer->cookie);
  if (!own_.ok() && !is_by_name_) AskForName();
}

std::string Arena::Handshake::FirstRefusal(const std::vector<Blob>& answers) const {
  for (const int rank : options_.ranks) {
    const Result<std::string> refusal = Agreed(answers, rank);
    if (!refusal.ok()) return refusal.status().message();
    if (!refusal->empty()) return "rank " + std::to_string(rank) + ": " + *refusal;
  }
  return "";
}

Result<std::unique_ptr<Arena>> Arena::Handshake::Attach(const std::string& address,
                                                        const Nonce& cookie) const {
  if (!is_by_name_ && !options_.sees_processes) {
    return Status::Internal("the ranks of this host cannot see each other's processes");
  }
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<ArenaFile> file,
                          ArenaFile::Open(options_.directory, address, layout_.bytes()));
  std::unique_ptr<Arena> arena(new Arena(options_, layout_, std::move(file)));
  const ArenaHeader& header = arena->header();
  if (header.magic != kArenaMagic || header.cookie != cookie) {
    return Status::Internal("the shared memory in " + options_.directory +
                            " is not the one that rank " + std::to_string(options_.ranks.front()) +
                            " made (are the ranks in separate containers?): " +
                            ArenaFile::NeededAndFree(options_.directory, layout_.bytes()));
  }
  MYDIST_RETURN_IF_ERROR(arena->Enter(options_));
  return arena;
}

}  // namespace mydist::shm
