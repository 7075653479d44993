// Where the memory is that the ranks of a host share: one tells the others.
#include "memory/shm/arena_file.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

using shm::ArenaFile;
using shm::FileOffer;

void Offer(std::span<const uint8_t> bytes) {
  const std::string text = ToText(bytes);
  const std::optional<FileOffer> offer = FileOffer::Decode(text);
  if (!offer) return;
  FUZZ_EXPECT(offer->Encode() == text);
  FUZZ_EXPECT(ArenaFile::IsName(offer->name));
  FUZZ_EXPECT(offer->name.find('/') == std::string::npos);
}

std::vector<Bytes> OfferSeeds() {
  const Result<std::string> name = ArenaFile::DrawName();
  FUZZ_EXPECT(name.ok());
  FileOffer offer{.address = "123/7", .name = *name};
  offer.cookie.fill('\n');
  FileOffer by_name{.address = *name, .name = *name};
  return {ToBytes(offer.Encode()), ToBytes(by_name.Encode())};
}

}  // namespace

std::vector<Target> MemoryTargets() { return {{"file_offer", Offer, OfferSeeds}}; }

}  // namespace mydist::fuzz
