// What ranks tell each other around their connections over Gloo. Without Gloo itself.
#include <algorithm>
#include <cstring>
#include <string>

#include "target.h"
#include "transport/gloo/wire.h"
#include "world/interface_choice.h"

namespace mydist::fuzz {
namespace {

void Introduction(std::span<const uint8_t> input) {
  const Bytes bytes(input.begin(), input.end());
  const Place place = DecodePlace(bytes);
  FUZZ_EXPECT(place.pid.find(':') == std::string::npos);
  FUZZ_EXPECT(DecodePlace(EncodePlace(place)) == place);

  const std::optional<Outcome> outcome = DecodeOutcome(bytes);
  if (!outcome) return;
  const Bytes again = EncodeOutcome(*outcome);
  FUZZ_EXPECT(again[0] == bytes[0] && (again[1] != 0) == (bytes[1] != 0));
  // Of what is well only the two words count.
  if (!outcome->status.ok()) FUZZ_EXPECT(std::equal(again.begin() + 2, again.end(), &bytes[2]));
}

std::vector<Bytes> IntroductionSeeds() {
  Place place{"host", "123", {}};
  place.greeting.fill(7);
  return {EncodePlace(place), EncodeOutcome({}),
          EncodeOutcome({Status::Timeout("cannot connect"), false})};
}

void FrameHeader(std::span<const uint8_t> bytes) {
  Frame frame;
  std::memcpy(&frame, bytes.data(), std::min(bytes.size(), sizeof(frame)));
  if (!CheckFrame(frame, 1).ok()) return;
  FUZZ_EXPECT(frame.payload_bytes <= static_cast<uint64_t>(kMaxControlMessageBytes));
  FUZZ_EXPECT(frame.kind >= FrameKind::kMessage && frame.kind <= FrameKind::kGoodbye);
}

std::vector<Bytes> FrameSeeds() {
  std::vector<Bytes> seeds;
  for (const FrameKind kind : {FrameKind::kMessage, FrameKind::kAcknowledge, FrameKind::kGoodbye}) {
    const Frame frame{.magic = kFrameMagic, .kind = kind, .payload_bytes = 5};
    Bytes& seed = seeds.emplace_back(sizeof(frame));
    std::memcpy(seed.data(), &frame, sizeof(frame));
  }
  return seeds;
}

// A user's names, then what there is: a name and an address each.
void Interfaces(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const uint8_t flags = input.Byte();
  InterfaceWish wish;
  wish.single_host = (flags & 1) != 0;
  for (int i = 0; i < (flags >> 1 & 3); ++i) wish.names.push_back(input.Line());
  for (int i = 0; i < (flags >> 3 & 3); ++i) wish.route_addresses.push_back(input.Line());
  std::vector<InterfaceAddress> available;
  while (!input.empty() && available.size() < 8) {
    const uint8_t kind = input.Byte();
    available.push_back({input.Line(), input.Line(), (kind & 1) != 0, (kind & 2) != 0});
  }
  const Result<InterfaceAddress> chosen = ChooseInterface(available, wish);
  if (!chosen.ok()) return;
  const auto is_it = [&](const InterfaceAddress& each) {
    return each.name == chosen->name && each.address == chosen->address;
  };
  FUZZ_EXPECT(std::any_of(available.begin(), available.end(), is_it));
  const auto is_named = [&](const std::string& name) { return name == chosen->name; };
  FUZZ_EXPECT(wish.names.empty() || std::any_of(wish.names.begin(), wish.names.end(), is_named));
  FUZZ_EXPECT(!wish.names.empty() || chosen->is_loopback == wish.single_host);
}

std::vector<Bytes> InterfacesSeeds() {
  const std::string both(
      "\2lo\0"
      "127.0.0.1\0"
      "\0eth0\0"
      "10.0.0.7",
      28);
  return {ToBytes('\1' + both), ToBytes('\0' + both), ToBytes(std::string("\2eth0\0", 6) + both),
          ToBytes(std::string("\x8"
                              "10.0.0.7\0",
                              10) +
                  both)};
}

}  // namespace

std::vector<Target> GlooTargets() {
  return {{"gloo_introduction", Introduction, IntroductionSeeds},
          {"gloo_frame", FrameHeader, FrameSeeds},
          {"interfaces", Interfaces, InterfacesSeeds}};
}

}  // namespace mydist::fuzz
