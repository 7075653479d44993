// What ranks tell each other first: the hello, and where they take heartbeats.
#include <string>

#include "job/heartbeat.h"
#include "job/hello.h"
#include "target.h"
#include "world/topology.h"

namespace mydist::fuzz {
namespace {

// Those of several ranks.
void Hellos(std::span<const uint8_t> bytes) {
  Input input(bytes);
  std::vector<Hello> hellos = {MakeHello("host", "MYDIST_FREEZE_AFTER=10\n")};
  while (!input.empty() && hellos.size() < 5) {
    const Result<Hello> hello = DecodeHello(input.Block());
    if (!hello.ok()) continue;
    const Result<Hello> again = DecodeHello(EncodeHello(*hello));
    FUZZ_EXPECT(again.ok());
    FUZZ_EXPECT(*again == *hello);
    hellos.push_back(*hello);
  }
  const Status compared = CompareHellos(hellos);
  FUZZ_EXPECT(compared.ok() || compared.code() == StatusCode::kVersionMismatch ||
              compared.code() == StatusCode::kMismatch);
  std::vector<std::string> hosts;
  std::vector<UsableCores> cores;
  for (const Hello& hello : hellos) {
    hosts.push_back(hello.host);
    cores.push_back(hello.cores);
  }
  HaveACoreEach(cores);
  const Result<Topology> topology = MakeTopology(static_cast<int>(hosts.size()) - 1, hosts);
  FUZZ_EXPECT(topology.ok());
  FUZZ_EXPECT(topology->local_rank < topology->local_size);
  FUZZ_EXPECT(topology->cross_rank < topology->cross_size);
}

void PulseAddresses(std::span<const uint8_t> bytes) {
  const Result<PulseAddress> address = DecodePulseAddress({bytes.begin(), bytes.end()});
  if (!address.ok()) return;
  const Result<PulseAddress> again = DecodePulseAddress(EncodePulseAddress(*address));
  FUZZ_EXPECT(again.ok());
  FUZZ_EXPECT(*again == *address);
}

std::vector<Bytes> PulseAddressesSeeds() {
  return {EncodePulseAddress({"10.0.0.7", {1, 2, 3}, {{0, 4711}, {9, 65535}}}),
          EncodePulseAddress({"fd00::7", {}, {}})};
}

std::vector<Bytes> HellosSeeds() {
  const auto block = [](const Hello& hello) {
    Bytes bytes = EncodeHello(hello);
    const auto size = static_cast<uint16_t>(bytes.size());
    bytes.insert(bytes.begin(), {static_cast<uint8_t>(size), static_cast<uint8_t>(size >> 8)});
    return bytes;
  };
  Hello hello = MakeHello("host", "MYDIST_FREEZE_AFTER=10\n");
  hello.cores = {{0, 1, 2, 8}, {{1.5, "27:4031"}}};
  hello.wants_timeline = true;
  Hello other = MakeHello("other", "MYDIST_FREEZE_AFTER=9\nMYDIST_X=\n");
  Bytes two = block(hello);
  const Bytes second = block(other);
  two.insert(two.end(), second.begin(), second.end());
  return {block(hello), block(other), two};
}

}  // namespace

std::vector<Target> JobTargets() {
  return {{"hellos", Hellos, HellosSeeds},
          {"pulse_addresses", PulseAddresses, PulseAddressesSeeds}};
}

}  // namespace mydist::fuzz
