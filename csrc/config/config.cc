#include "config/config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/registry.h"

namespace mydist {
namespace {

// The values a variable can have, from their text. Strict: the whole text must be the value,
// without spaces around it; nothing when it is not.
namespace value_text {

template <typename T>
std::optional<T> Whole(std::string_view text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  // Written so that NaN is refused as well.
  if (!(value >= low && value <= high)) return std::nullopt;
  return value;
}

std::string_view WithoutSpaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool IsInterfaceName(std::string_view name) {
  return !name.empty() && name.size() < 16 && std::all_of(name.begin(), name.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '/';
  });
}

std::optional<int64_t> Integer(std::string_view text, int64_t low, int64_t high) {
  return Whole<int64_t>(text, low, high);
}

std::optional<double> Number(std::string_view text, double low, double high) {
  return Whole<double>(text, low, high);
}

std::optional<std::chrono::milliseconds> Seconds(std::string_view text, double low, double high) {
  const std::optional<double> seconds = Number(text, low, high);
  if (!seconds) return std::nullopt;
  const int64_t count = std::llround(*seconds * 1000);
  return std::chrono::milliseconds(*seconds > 0 ? std::max<int64_t>(count, 1) : count);
}

std::optional<bool> Switch(std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  return std::nullopt;
}

std::optional<std::vector<std::string>> InterfaceNames(std::string_view text) {
  std::vector<std::string> names;
  for (bool is_last = false; !is_last;) {
    const size_t comma = text.find(',');
    const std::string_view name = WithoutSpaces(text.substr(0, comma));
    if (!IsInterfaceName(name)) return std::nullopt;
    names.emplace_back(name);
    is_last = comma == std::string_view::npos;
    if (!is_last) text.remove_prefix(comma + 1);
  }
  return names;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // Distances of a's front to every front of b.
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace value_text

constexpr std::string_view kPrefix = "MYDIST_";
constexpr double kMaxSeconds = 1e6;
constexpr int64_t kMaxCacheCapacity = 1'000'000;
constexpr int64_t kMaxConsistencySteps = 1'000'000'000;
constexpr double kMaxFusionMegabytes = 1 << 20;
constexpr double kBytesPerMegabyte = 1 << 20;

// One variable: what it may be, what it is when unset, and how its text gets into the Config.
// `parse` gives false when the text is not allowed.
struct Row {
  const char* variable;
  const char* allowed;
  const char* default_value;
  bool (*parse)(const std::string& text, Config& config);
};

template <typename T, typename Field>
bool Store(std::optional<T> value, Field& field) {
  if (!value) return false;
  field = std::move(*value);
  return true;
}

bool ParseFusionThreshold(const std::string& text, Config& config) {
  const auto megabytes = value_text::Number(text, 0, kMaxFusionMegabytes);
  if (!megabytes) return false;
  // Rounded up, so that only 0 means never.
  config.fusion_threshold_bytes = static_cast<int64_t>(std::ceil(*megabytes * kBytesPerMegabyte));
  return true;
}

bool ParseBucketSize(const std::string& text, Config& config) {
  const auto megabytes = value_text::Number(text, 0, kMaxFusionMegabytes);
  if (!megabytes) return false;
  config.bucket_size_bytes = static_cast<int64_t>(std::ceil(*megabytes * kBytesPerMegabyte));
  return true;
}

// Whether there is such a row is for the registry that it is looked up in.
bool ParseName(const std::string& text, std::string& field) {
  if (!IsValueName(text)) return false;
  field = text;
  return true;
}

bool ParseController(const std::string& text, Config& config) {
  return ParseName(text, config.controller);
}

bool ParseAlgorithm(const std::string& text, Config& config) {
  return ParseName(text, config.algorithm);
}

bool ParseMarkCycles(const std::string& text, Config& config) {
  return Store(value_text::Switch(text), config.timeline_mark_cycles);
}

bool ParsePlugins(const std::string& text, Config& config) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end == begin) return false;
    config.plugins.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return true;
}

// The enumerators are in the order of the words.
bool ParseAttach(const std::string& text, Config& config) {
  constexpr std::array<std::string_view, 3> kWords = {"auto", "on", "off"};
  const auto it = std::find(kWords.begin(), kWords.end(), text);
  if (it == kWords.end()) return false;
  config.cross_memory_attach = static_cast<AttachChoice>(it - kWords.begin());
  return true;
}

bool ParseLogLevel(const std::string& text, Config& config) {
  constexpr std::array<std::string_view, 6> kWords = {"trace",   "debug", "info",
                                                      "warning", "error", "off"};
  const auto it = std::find(kWords.begin(), kWords.end(), text);
  if (it == kWords.end()) return false;
  config.log_level = static_cast<LogLevel>(it - kWords.begin());
  return true;
}

bool ParseSimd(const std::string& text, Config& config) {
  constexpr std::array<std::string_view, 4> kWords = {"auto", "avx512", "avx2", "portable"};
  if (std::find(kWords.begin(), kWords.end(), text) == kWords.end()) return false;
  config.simd = text;
  return true;
}

bool ParseText(const std::string& text, size_t max_bytes, std::string& field) {
  if (text.size() > max_bytes) return false;
  field = text;
  return true;
}

bool ParseHostId(const std::string& text, Config& config) {
  return ParseText(text, 255, config.host_id);
}

bool ParseNcclLibrary(const std::string& text, Config& config) {
  return ParseText(text, 4095, config.nccl_library);
}

constexpr std::array kRows = {
    Row{"MYDIST_FUSION_THRESHOLD_MB", "a number from 0 to 1048576", "64", ParseFusionThreshold},
    Row{"MYDIST_CACHE_CAPACITY", "an integer from 0 to 1000000", "1024",
        [](const std::string& text, Config& config) {
          return Store(value_text::Integer(text, 0, kMaxCacheCapacity), config.cache_capacity);
        }},
    Row{"MYDIST_COORDINATOR_RADIX", "an integer from 2 to 1024", "32",
        [](const std::string& text, Config& config) {
          return Store(value_text::Integer(text, 2, 1024), config.coordinator_radix);
        }},
    Row{"MYDIST_FREEZE_AFTER", "an integer from 0 to 1000000", "10",
        [](const std::string& text, Config& config) {
          return Store(value_text::Integer(text, 0, 1'000'000), config.freeze_after);
        }},
    Row{"MYDIST_STALL_WARNING_SECONDS", "a number from 0 to 1000000", "10",
        [](const std::string& text, Config& config) {
          return Store(value_text::Seconds(text, 0, kMaxSeconds), config.stall_warning);
        }},
    Row{"MYDIST_STALL_SHUTDOWN_SECONDS", "a number from 0 to 1000000", "0",
        [](const std::string& text, Config& config) {
          return Store(value_text::Seconds(text, 0, kMaxSeconds), config.stall_shutdown);
        }},
    Row{"MYDIST_SHUTDOWN_SECONDS", "a number from 0 to 1000000", "5",
        [](const std::string& text, Config& config) {
          return Store(value_text::Seconds(text, 0, kMaxSeconds), config.shutdown_drain);
        }},
    Row{"MYDIST_TIMEOUT_SECONDS", "a number from 0.1 to 1000000", "30",
        [](const std::string& text, Config& config) {
          return Store(value_text::Seconds(text, 0.1, kMaxSeconds), config.connect_timeout);
        }},
    Row{"MYDIST_TIMELINE", "a path of at most 4095 bytes", "",
        [](const std::string& text, Config& config) {
          return ParseText(text, 4095, config.timeline_path);
        }},
    Row{"MYDIST_TIMELINE_MARK_CYCLES", "0, 1, true or false", "0", ParseMarkCycles},
    Row{"MYDIST_CONTROLLER", "auto, local, mpi, gloo or the name of an extension's transport",
        "auto", ParseController},
    Row{"MYDIST_ALGORITHM",
        "auto, shared_memory, hierarchical, flat or the name of an extension's algorithm", "auto",
        ParseAlgorithm},
    Row{"MYDIST_PLUGINS", "paths of libraries, separated by colons", "", ParsePlugins},
    Row{"MYDIST_NETWORK_INTERFACES", "names of 1 to 15 characters, separated by commas", "",
        [](const std::string& text, Config& config) {
          return Store(value_text::InterfaceNames(text), config.network_interfaces);
        }},
    Row{"MYDIST_HIERARCHICAL_ALLREDUCE", "0, 1, true or false", "",
        [](const std::string& text, Config& config) {
          return Store(value_text::Switch(text), config.hierarchical_allreduce);
        }},
    Row{"MYDIST_SHARED_MEMORY", "0, 1, true or false", "1",
        [](const std::string& text, Config& config) {
          return Store(value_text::Switch(text), config.shared_memory);
        }},
    Row{"MYDIST_SIMD", "auto, avx512, avx2 or portable", "auto", ParseSimd},
    Row{"MYDIST_CROSS_MEMORY_ATTACH", "auto, on or off", "auto", ParseAttach},
    Row{"MYDIST_BUCKET_SIZE_MB", "a number from 0 to 1048576", "", ParseBucketSize},
    Row{"MYDIST_CHECK_CONSISTENCY", "an integer from -1 to 1000000000", "0",
        [](const std::string& text, Config& config) {
          return Store(value_text::Integer(text, -1, kMaxConsistencySteps),
                       config.check_consistency_steps);
        }},
    Row{"MYDIST_NCCL_LIBRARY", "a path of at most 4095 bytes", "", ParseNcclLibrary},
    Row{"MYDIST_LOG_LEVEL", "trace, debug, info, warning, error or off", "warning", ParseLogLevel},
    Row{"MYDIST_HOST_ID", "a text of at most 255 bytes", "", ParseHostId},
};

struct ExtraRow {
  std::string name;  // The variable.
  ExtraKnob extra;
};

// The settings of extensions.
Registry<ExtraRow>& Extras() {
  static auto* const kExtras = new Registry<ExtraRow>("the settings", {});
  return *kExtras;
}

// Set for each rank by the launcher, or by the rank for its children; read in Python; no knobs.
constexpr std::array<std::string_view, 12> kLauncherVariables = {
    "MYDIST_RANK",       "MYDIST_SIZE",        "MYDIST_LOCAL_RANK", "MYDIST_LOCAL_SIZE",
    "MYDIST_CROSS_RANK", "MYDIST_CROSS_SIZE",  "MYDIST_JOB_ID",     "MYDIST_JOB_KEY_FD",
    "MYDIST_RENDEZVOUS", "MYDIST_FAILURE_TAG", "MYDIST_JOB_PARENT", "MYDIST_JOB_ENDS_FD"};

// Settings of earlier versions: named in one warning and otherwise ignored, until the next release.
struct RemovedRow {
  std::string_view variable;
  const char* instead;
};
constexpr std::array kRemoved = {
    RemovedRow{"MYDIST_GPU_IPC", "tensors on GPUs are reduced over NCCL or through host memory"},
    RemovedRow{"MYDIST_CUDA_AWARE_MPI",
               "tensors on GPUs are reduced over NCCL or through host memory"},
};

bool IsOfLauncher(std::string_view variable) {
  return std::find(kLauncherVariables.begin(), kLauncherVariables.end(), variable) !=
         kLauncherVariables.end();
}

// The value as it can be shown in one line: control characters as \xNN, a long one cut.
std::string Shown(const std::string& value) {
  constexpr size_t kMaxShownBytes = 100;
  std::string shown;
  for (const char c : value.substr(0, kMaxShownBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    std::array<char, 8> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", byte);
    shown += byte < 0x20 || byte == 0x7F ? std::string(escaped.data()) : std::string(1, c);
  }
  return "'" + shown + "'" + (value.size() > kMaxShownBytes ? "…" : "");
}

Status NotValid(const std::string& variable, const std::string& text, const std::string& allowed) {
  return Status::InvalidArgument(variable + "=" + Shown(text) + " is not valid: expected " +
                                 allowed);
}

std::string FormatNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.15g", value);
  return text.data();
}

// The knob that `name` is probably meant to be: differing in at most a quarter of what follows the
// prefix, or in two places. Empty: there is none.
std::string LooksLike(std::string_view name) {
  std::string nearest;
  size_t nearest_distance = std::max<size_t>(2, (name.size() - kPrefix.size()) / 4) + 1;
  for (const Knob& knob : Knobs()) {
    const size_t distance = value_text::EditDistance(name, knob.variable);
    if (distance >= nearest_distance) continue;
    nearest = knob.variable;
    nearest_distance = distance;
  }
  return nearest;
}

// The host of "host:port" or "[fd00::7]:port". Whether it makes sense is for the launcher's client
// to check; here it is a hint.
std::string HostPart(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

}  // namespace

Result<Config> Config::From(const Lookup& lookup) {
  Config config;
  for (const Row& row : kRows) {
    const std::optional<std::string> text = lookup(row.variable);
    if (!text || text->empty()) continue;
    if (!row.parse(*text, config)) return NotValid(row.variable, *text, row.allowed);
  }
  for (const ExtraRow& row : Extras().All()) {
    const std::optional<std::string> text = lookup(row.name);
    if (!text || text->empty()) continue;
    if (!row.extra.is_allowed(*text)) return NotValid(row.name, *text, row.extra.knob.allowed);
    config.extra[row.name] = *text;
  }
  const std::optional<std::string> rendezvous = lookup("MYDIST_RENDEZVOUS");
  config.meeting_host =
      rendezvous ? HostPart(*rendezvous) : lookup("MASTER_ADDR").value_or(std::string());
  config.nccl_shares_gpus =
      lookup("NCCL_MULTI_RANK_GPU_ENABLE") == "1" && lookup("NCCL_NVLS_ENABLE") == "0";
  config.nccl_blocks = lookup("NCCL_COMM_BLOCKING") == "1";
  config.nccl_host_id = lookup("NCCL_HOSTID").value_or(std::string());
  return config;
}

Result<Config> Config::FromEnv() {
  return From([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

std::string Config::Digest() const {
  std::string hierarchical = "unset";
  if (hierarchical_allreduce) hierarchical = *hierarchical_allreduce ? "1" : "0";
  const auto megabytes = [](int64_t bytes) {
    return FormatNumber(static_cast<double>(bytes) / kBytesPerMegabyte);
  };
  const std::string bucket = bucket_size_bytes ? megabytes(*bucket_size_bytes) : "unset";
  std::string extras;
  for (const auto& [variable, row] : Extras().All()) {
    if (!row.is_same_everywhere) continue;
    const auto set = extra.find(variable);
    extras += variable + "=" + (set == extra.end() ? row.knob.default_value : set->second) + "\n";
  }
  return "MYDIST_ALGORITHM=" + algorithm +
         "\nMYDIST_FUSION_THRESHOLD_MB=" + megabytes(fusion_threshold_bytes) +
         "\nMYDIST_CACHE_CAPACITY=" + std::to_string(cache_capacity) +
         "\nMYDIST_COORDINATOR_RADIX=" + std::to_string(coordinator_radix) +
         "\nMYDIST_FREEZE_AFTER=" + std::to_string(freeze_after) +
         "\nMYDIST_HIERARCHICAL_ALLREDUCE=" + hierarchical +
         "\nMYDIST_SHARED_MEMORY=" + (shared_memory ? "1" : "0") +
         "\nMYDIST_BUCKET_SIZE_MB=" + bucket +
         "\nMYDIST_CHECK_CONSISTENCY=" + std::to_string(check_consistency_steps) + "\n" + extras;
}

std::vector<Knob> Knobs() {
  std::vector<Knob> knobs;
  for (const Row& row : kRows) knobs.push_back({row.variable, row.allowed, row.default_value});
  for (const ExtraRow& row : Extras().All()) knobs.push_back(row.extra.knob);
  return knobs;
}

Status RegisterKnob(ExtraKnob knob) {
  const std::string variable = knob.knob.variable;
  const auto is_ours = [&](const Row& row) { return variable == row.variable; };
  const bool is_in_use = std::any_of(kRows.begin(), kRows.end(), is_ours) || IsOfLauncher(variable);
  if (!variable.starts_with(kPrefix) || knob.is_allowed == nullptr || is_in_use) {
    return Status::InvalidArgument(
        "the setting '" + variable +
        "' cannot be added: expected a variable that begins with MYDIST_ and is not in use, and "
        "a function that checks its value");
  }
  return Extras().Add({variable, std::move(knob)});
}

std::vector<std::string> UnknownVariables(const std::vector<std::string>& names) {
  const std::vector<Knob> knobs = Knobs();
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    const bool is_known = std::any_of(knobs.begin(), knobs.end(),
                                      [&](const Knob& knob) { return name == knob.variable; }) ||
                          IsOfLauncher(name);
    if (!name.starts_with(kPrefix) || is_known) continue;
    const auto removed = std::find_if(kRemoved.begin(), kRemoved.end(),
                                      [&](const RemovedRow& row) { return name == row.variable; });
    if (removed != kRemoved.end()) {
      warnings.push_back(name + " is set but has been removed: " + removed->instead);
    } else if (const std::string meant = LooksLike(name); !meant.empty()) {
      warnings.push_back(name + " is set, but mydist has no such setting; did you mean " + meant +
                         "?");
    }
  }
  return warnings;
}

std::vector<std::string> UnknownVariables() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return UnknownVariables(names);
}

}  // namespace mydist
