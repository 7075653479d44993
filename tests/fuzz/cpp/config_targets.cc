// Values and names of settings.
#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "config/config.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

// Lines that end with '\0', as a value may hold any other byte: the number of a knob in a byte,
// then its value. What is no knob is one of the other variables.
std::map<std::string, std::string> Variables(Input input) {
  std::vector<std::string> names;
  for (const Knob& knob : Knobs()) names.push_back(knob.variable);
  names.insert(names.end(), {"MYDIST_RENDEZVOUS", "MASTER_ADDR", "NCCL_HOSTID"});
  std::map<std::string, std::string> variables;
  while (!input.empty()) {
    const std::string& name = names[input.Byte() % names.size()];
    variables[name] = input.Line();
  }
  return variables;
}

bool IsOneLine(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<uint8_t>(c) < 0x20 || static_cast<uint8_t>(c) == 0x7F;
  });
}

void ExpectInRange(const Config& config) {
  const auto is_within = [](auto value, auto low, auto high) {
    return value >= low && value <= high;
  };
  using std::chrono::milliseconds;
  FUZZ_EXPECT(is_within(config.fusion_threshold_bytes, 0, int64_t{1} << 40));
  FUZZ_EXPECT(is_within(config.cache_capacity, 0, 1'000'000));
  FUZZ_EXPECT(is_within(config.coordinator_radix, 2, 1024));
  FUZZ_EXPECT(is_within(config.freeze_after, 0, 1'000'000));
  for (const milliseconds wait :
       {config.stall_warning, config.stall_shutdown, config.shutdown_drain}) {
    FUZZ_EXPECT(is_within(wait.count(), 0, 1'000'000'000));
  }
  FUZZ_EXPECT(is_within(config.connect_timeout.count(), 100, 1'000'000'000));
  FUZZ_EXPECT(is_within(config.timeline_path.size(), 0u, 4095u));
  for (const std::string& name : config.network_interfaces) {
    FUZZ_EXPECT(is_within(name.size(), 1u, 15u) && IsOneLine(name));
  }
  for (const std::string& plugin : config.plugins) FUZZ_EXPECT(!plugin.empty());
}

void Settings(std::span<const uint8_t> bytes) {
  const std::map<std::string, std::string> variables = Variables(Input(bytes));
  const auto config = Config::From([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
  if (!config.ok()) {
    FUZZ_EXPECT(config.status().code() == StatusCode::kInvalidArgument);
    FUZZ_EXPECT(IsOneLine(config.status().message()));
    return;
  }
  ExpectInRange(*config);
  // Lines that begin with a name, and no more of them than with the values of a user who set none.
  const std::string digest = config->Digest();
  const std::string plain = Config().Digest();
  FUZZ_EXPECT(std::count(digest.begin(), digest.end(), '\n') ==
              std::count(plain.begin(), plain.end(), '\n'));
}

std::vector<Bytes> SettingsSeeds() {
  std::vector<Bytes> seeds;
  const std::vector<Knob> knobs = Knobs();
  for (size_t i = 0; i < knobs.size(); ++i) {
    const std::string value = knobs[i].default_value.empty() ? "a" : knobs[i].default_value;
    seeds.push_back(ToBytes(static_cast<char>(i) + value));
  }
  const auto rendezvous = static_cast<char>(knobs.size());
  seeds.push_back(ToBytes(rendezvous + std::string("[fd00::7]:29500")));
  seeds.push_back(
      ToBytes(std::string("\x01"
                          "10\0\x02"
                          "32",
                          6)));
  return seeds;
}

void VariableNames(std::span<const uint8_t> bytes) {
  Input input(bytes);
  std::vector<std::string> names;
  while (!input.empty() && names.size() < 8) names.push_back("MYDIST_" + input.Line());
  FUZZ_EXPECT(UnknownVariables(names).size() <= names.size());
}

std::vector<Bytes> VariableNamesSeeds() {
  return {ToBytes("FUSION_THRESHOLD"), ToBytes("GPU_IPC"), ToBytes("RANK"), ToBytes("CONTROLER")};
}

}  // namespace

std::vector<Target> ConfigTargets() {
  return {{"settings", Settings, SettingsSeeds},
          {"variable_names", VariableNames, VariableNamesSeeds}};
}

}  // namespace mydist::fuzz
