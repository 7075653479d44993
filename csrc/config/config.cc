#include "config/config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/call_name.h"
#include "base/registry.h"
#include "mydist/build_config.h"

namespace mydist {
namespace {

constexpr std::string_view kPrefix = "MYDIST_";
constexpr double kBytesPerMegabyte = 1 << 20;

std::string FormatNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.15g", value);
  return text.data();
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
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

// A kind of value: what is allowed, in words, and the value of a text; nothing when it is not
// allowed. Strict: the whole text must be the value, without spaces around it.
template <typename T>
struct Kind {
  std::string allowed;
  std::function<std::optional<T>(const std::string& text)> convert;
};

template <typename T>
Kind<T> Range(const std::string& noun, T low, T high) {
  const auto words = [](T bound) { return FormatNumber(static_cast<double>(bound)); };
  return {noun + " from " + words(low) + " to " + words(high),
          [low, high](const std::string& text) -> std::optional<T> {
            T value{};
            const char* const last = text.data() + text.size();
            const auto [end, error] = std::from_chars(text.data(), last, value);
            // Written so that NaN is refused as well.
            const bool is_allowed =
                error == std::errc() && end == last && value >= low && value <= high;
            return is_allowed ? std::optional(value) : std::nullopt;
          }};
}

Kind<int64_t> Integer(int64_t low, int64_t high) { return Range("an integer", low, high); }

template <typename T>
Kind<T> Number(double low, double high, T (*make)(double number)) {
  const Kind<double> number = Range("a number", low, high);
  return {number.allowed, [number, make](const std::string& text) {
            const std::optional<double> value = number.convert(text);
            return value ? std::optional(make(*value)) : std::nullopt;
          }};
}

Kind<std::chrono::milliseconds> Seconds(double low) {
  return Number(
      low, 1e6, +[](double seconds) {
        const int64_t count = std::llround(seconds * 1000);
        return std::chrono::milliseconds(seconds > 0 ? std::max<int64_t>(count, 1) : count);
      });
}

// 0 means never; what is shorter than `low` could not be kept.
Kind<std::chrono::milliseconds> SecondsOrNever(double low) {
  const auto seconds = Seconds(low);
  const auto never = Seconds(0);
  return {"0 or " + seconds.allowed, [seconds, never](const std::string& text) {
            const auto value = never.convert(text);
            return value && value->count() == 0 ? value : seconds.convert(text);
          }};
}

// In bytes, rounded up, so that only 0 means never.
Kind<int64_t> Megabytes() {
  return Number(
      0, 1 << 20, +[](double megabytes) {
        return static_cast<int64_t>(std::ceil(megabytes * kBytesPerMegabyte));
      });
}

Kind<bool> Switch() {
  return {"0, 1, true or false", [](const std::string& text) -> std::optional<bool> {
            if (text == "1" || text == "true") return true;
            if (text == "0" || text == "false") return false;
            return std::nullopt;
          }};
}

Kind<std::optional<bool>> AutoOnOff() {
  return {"auto, on or off", [](const std::string& text) {
            std::optional<std::optional<bool>> value;
            if (text == "auto") value.emplace(std::nullopt);
            if (text == "on" || text == "off") value.emplace(text == "on");
            return value;
          }};
}

// One of some words: itself, or the enumerator at its place.
template <typename T>
Kind<T> Choice(const std::vector<std::string>& words) {
  return {ListOfNames(words), [words](const std::string& text) -> std::optional<T> {
            const auto found = std::find(words.begin(), words.end(), text);
            if (found == words.end()) return std::nullopt;
            if constexpr (std::is_enum_v<T>) {
              return static_cast<T>(found - words.begin());
            } else {
              return *found;
            }
          }};
}

Kind<std::string> Text(const std::string& noun, size_t max_bytes) {
  return {noun + " of at most " + std::to_string(max_bytes) + " bytes",
          [max_bytes](const std::string& text) {
            return text.size() <= max_bytes ? std::optional(text) : std::nullopt;
          }};
}

// Whether there is such a row is for the registry that it is looked up in.
Kind<std::string> RowName(const std::string& allowed) {
  return {allowed, [](const std::string& text) {
            return IsValueName(text) ? std::optional(text) : std::nullopt;
          }};
}

using Texts = std::vector<std::string>;

Kind<Texts> Paths() {
  return {"paths of libraries, separated by colons",
          [](const std::string& text) -> std::optional<Texts> {
            const auto parts = Split(text, ':');
            if (std::find(parts.begin(), parts.end(), "") != parts.end()) return std::nullopt;
            return Texts(parts.begin(), parts.end());
          }};
}

Kind<Texts> InterfaceNames() {
  return {"names of 1 to 15 characters, separated by commas",
          [](const std::string& text) -> std::optional<Texts> {
            Texts names;
            for (const std::string_view part : Split(text, ',')) {
              names.emplace_back(WithoutSpaces(part));
              if (!IsInterfaceName(names.back())) return std::nullopt;
            }
            return names;
          }};
}

// `parse` puts the value of a text into the Config, or gives false when it is not allowed.
struct Row {
  Knob knob;
  std::function<bool(const std::string& text, Config& config)> parse;
};

template <typename Field, typename T>
Row MakeRow(const std::string& variable, const std::string& default_value, Field Config::*field,
            Kind<T> kind) {
  return {{variable, kind.allowed, default_value},
          [field, convert = std::move(kind.convert)](const std::string& text, Config& config) {
            std::optional<T> value = convert(text);
            if (value) config.*field = std::move(*value);
            return value.has_value();
          }};
}

std::vector<Row> MakeRows() {
  using C = Config;
  return {
      MakeRow("MYDIST_FUSION_THRESHOLD_MB", "64", &C::fusion_threshold_bytes, Megabytes()),
      MakeRow("MYDIST_CACHE_CAPACITY", "1024", &C::cache_capacity, Integer(0, 1'000'000)),
      MakeRow("MYDIST_COORDINATOR_RADIX", "32", &C::coordinator_radix, Integer(2, 1024)),
      MakeRow("MYDIST_FREEZE_AFTER", "10", &C::freeze_after, Integer(0, 1'000'000)),
      MakeRow("MYDIST_STALL_WARNING_SECONDS", "10", &C::stall_warning, Seconds(0)),
      MakeRow("MYDIST_STALL_SHUTDOWN_SECONDS", "0", &C::stall_shutdown, Seconds(0)),
      MakeRow("MYDIST_HEARTBEAT_TIMEOUT_SECONDS", "10", &C::heartbeat_timeout, SecondsOrNever(0.1)),
      MakeRow("MYDIST_SHUTDOWN_SECONDS", "5", &C::shutdown_drain, Seconds(0)),
      MakeRow("MYDIST_TIMEOUT_SECONDS", "30", &C::connect_timeout, Seconds(0.1)),
      MakeRow("MYDIST_TIMELINE", "", &C::timeline_path, Text("a path", 4095)),
      MakeRow("MYDIST_TIMELINE_MARK_CYCLES", "0", &C::timeline_mark_cycles, Switch()),
      MakeRow("MYDIST_FLIGHT_RECORDER_DIR", "", &C::flight_recorder_folder, Text("a path", 4095)),
      MakeRow("MYDIST_STALL_STACK", "0", &C::stall_stack, Switch()),
      MakeRow("MYDIST_CONTROLLER", "auto", &C::controller,
              RowName("auto, local, mpi, gloo or the name of an extension's transport")),
      MakeRow("MYDIST_ALGORITHM", "auto", &C::algorithm,
              RowName("auto, shared_memory, hierarchical, flat or the name of an extension's "
                      "algorithm")),
      MakeRow("MYDIST_PLUGINS", "", &C::plugins, Paths()),
      MakeRow("MYDIST_NETWORK_INTERFACES", "", &C::network_interfaces, InterfaceNames()),
      MakeRow("MYDIST_HIERARCHICAL_ALLREDUCE", "", &C::hierarchical_allreduce, Switch()),
      MakeRow("MYDIST_SHARED_MEMORY", "1", &C::shared_memory, Switch()),
      MakeRow("MYDIST_SIMD", "auto", &C::simd,
              Choice<std::string>({"auto", "avx512", "avx2", "portable"})),
      MakeRow("MYDIST_CROSS_MEMORY_ATTACH", "auto", &C::cross_memory_attach, AutoOnOff()),
      MakeRow("MYDIST_BUCKET_SIZE_MB", "", &C::bucket_size_bytes, Megabytes()),
      MakeRow("MYDIST_CHECK_CONSISTENCY", "0", &C::check_consistency_steps,
              Integer(-1, 1'000'000'000)),
      MakeRow("MYDIST_CHECK_FINITE", "0", &C::check_finite, Switch()),
      MakeRow("MYDIST_SERVERS", "1", &C::servers, Integer(1, 1024)),
      MakeRow("MYDIST_PS_PIECE_KB", "1024", &C::ps_piece_kilobytes, Integer(4, 16384)),
      MakeRow("MYDIST_PS_IN_FLIGHT_MB", "16", &C::ps_in_flight_megabytes, Integer(1, 1024)),
      MakeRow("MYDIST_PS_THREADS", "0", &C::ps_threads, Integer(0, 1024)),
      MakeRow("MYDIST_NCCL_LIBRARY", "", &C::nccl_library, Text("a path", 4095)),
      MakeRow("MYDIST_LOG_LEVEL", "warning", &C::log_level,
              Choice<LogLevel>({"trace", "debug", "info", "warning", "error", "off"})),
      MakeRow("MYDIST_HOST_ID", "", &C::host_id, Text("a text", 255)),
  };
}

// In the order of docs/configuration.md.
const std::vector<Row>& Rows() {
  static const auto* const kRows = new std::vector<Row>(MakeRows());
  return *kRows;
}

struct ExtraRow {
  std::string name;  // The variable.
  ExtraKnob extra;
};

// The settings of extensions.
Registry<ExtraRow>& Extras() {
  static auto* const kExtras = new Registry<ExtraRow>("the settings", {});
  return *kExtras;
}

// Set for each rank or server by the launcher, or by the rank for its children; no knobs.
constexpr std::array<std::string_view, 17> kLauncherVariables = {"MYDIST_RANK",
                                                                 "MYDIST_SIZE",
                                                                 "MYDIST_LOCAL_RANK",
                                                                 "MYDIST_LOCAL_SIZE",
                                                                 "MYDIST_CROSS_RANK",
                                                                 "MYDIST_CROSS_SIZE",
                                                                 "MYDIST_JOB_ID",
                                                                 "MYDIST_JOB_KEY_FD",
                                                                 "MYDIST_RENDEZVOUS",
                                                                 "MYDIST_FAILURE_TAG",
                                                                 "MYDIST_JOB_PARENT",
                                                                 "MYDIST_JOB_ENDS_FD",
                                                                 "MYDIST_JOB_WORKER",
                                                                 "MYDIST_SERVER",
                                                                 "MYDIST_SERVER_BIND",
                                                                 "MYDIST_SERVER_ADDRESS_FD",
                                                                 "MYDIST_SERVER_ADDRESSES"};

// Set by a test in one rank; read here alone.
constexpr const char* kFailpointVariable = "MYDIST_FAILPOINT";

// Read by the build. The launcher has the same list; a test compares both with their readers.
constexpr std::array<std::string_view, 17> kBuildVariables = {"MYDIST_BUILD_BENCHMARKS",
                                                              "MYDIST_BUILD_DIR",
                                                              "MYDIST_BUILD_TESTS",
                                                              "MYDIST_BUILD_TORCH",
                                                              "MYDIST_CLANG",
                                                              "MYDIST_CLANG_FORMAT",
                                                              "MYDIST_FAILPOINTS",
                                                              "MYDIST_PYTHON",
                                                              "MYDIST_SANITIZE",
                                                              "MYDIST_SANITIZE_LOOPS",
                                                              "MYDIST_THREAD_SAFETY",
                                                              "MYDIST_TORCH_REQUIREMENT",
                                                              "MYDIST_UNITY",
                                                              "MYDIST_WITH_CUDA",
                                                              "MYDIST_WITH_GLOO",
                                                              "MYDIST_WITH_MPI",
                                                              "MYDIST_WITH_PS"};

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

template <typename Names>
bool IsAmong(const Names& names, std::string_view variable) {
  return std::find(names.begin(), names.end(), variable) != names.end();
}

bool IsOfLauncher(std::string_view variable) { return IsAmong(kLauncherVariables, variable); }

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

Status NotValid(const Knob& knob, const std::string& text) {
  return Status::InvalidArgument(knob.variable + "=" + Shown(text) + " is not valid: expected " +
                                 knob.allowed);
}

// An ordinary build refuses it: a variable that was left over must not kill a rank.
Result<std::optional<Failpoint>> FailpointOf(const std::optional<std::string>& text) {
  if (!text || text->empty()) return std::optional<Failpoint>();
  if (!build_config::kAcceptsFailpoints) {
    return Status::InvalidArgument(std::string(kFailpointVariable) +
                                   " is set, but this build accepts no failpoints. Unset it, or "
                                   "build with the CMake option MYDIST_FAILPOINTS=ON.");
  }
  const std::optional<Failpoint> failpoint = Failpoint::Parse(*text);
  if (failpoint) return failpoint;
  return NotValid({kFailpointVariable, Failpoint::AllowedText(), ""}, *text);
}

// The knob that `name` is probably meant to be: differing in at most a quarter of what follows the
// prefix, or in two places. Empty: there is none.
std::string LooksLike(std::string_view name) {
  std::string nearest;
  size_t nearest_distance = std::max<size_t>(2, (name.size() - kPrefix.size()) / 4) + 1;
  for (const Knob& knob : Knobs()) {
    const size_t distance = EditDistance(name, knob.variable);
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
  for (const Row& row : Rows()) {
    const std::optional<std::string> text = lookup(row.knob.variable);
    if (!text || text->empty()) continue;
    if (!row.parse(*text, config)) return NotValid(row.knob, *text);
  }
  for (const ExtraRow& row : Extras().All()) {
    const std::optional<std::string> text = lookup(row.name);
    if (!text || text->empty()) continue;
    if (!row.extra.is_allowed(*text)) return NotValid(row.extra.knob, *text);
    config.extra[row.name] = *text;
  }
  const std::optional<std::string> rendezvous = lookup("MYDIST_RENDEZVOUS");
  config.meeting_host =
      rendezvous ? HostPart(*rendezvous) : lookup("MASTER_ADDR").value_or(std::string());
  config.nccl_shares_gpus =
      lookup("NCCL_MULTI_RANK_GPU_ENABLE") == "1" && lookup("NCCL_NVLS_ENABLE") == "0";
  config.nccl_blocks = lookup("NCCL_COMM_BLOCKING") == "1";
  config.nccl_host_id = lookup("NCCL_HOSTID").value_or(std::string());
  MYDIST_ASSIGN_OR_RETURN(config.failpoint, FailpointOf(lookup(kFailpointVariable)));
  return config;
}

Result<Config> Config::FromEnv() {
  return From([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

std::string Config::HostId() const {
  std::array<char, 256> name{};
  if (!host_id.empty()) return host_id;
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
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
         "\nMYDIST_BUCKET_SIZE_MB=" + bucket + "\nMYDIST_HEARTBEAT_TIMEOUT_SECONDS=" +
         FormatNumber(1e-3 * static_cast<double>(heartbeat_timeout.count())) +
         "\nMYDIST_CHECK_CONSISTENCY=" + std::to_string(check_consistency_steps) +
         "\nMYDIST_CHECK_FINITE=" + (check_finite ? "1" : "0") + "\n" + extras;
}

std::vector<Knob> Knobs() {
  std::vector<Knob> knobs;
  for (const Row& row : Rows()) knobs.push_back(row.knob);
  for (const ExtraRow& row : Extras().All()) knobs.push_back(row.extra.knob);
  return knobs;
}

Status RegisterKnob(ExtraKnob knob) {
  const std::string variable = knob.knob.variable;
  const auto is_ours = [&](const Row& row) { return variable == row.knob.variable; };
  const bool is_in_use =
      std::any_of(Rows().begin(), Rows().end(), is_ours) || IsOfLauncher(variable);
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
                          IsOfLauncher(name) || IsAmong(kBuildVariables, name) ||
                          name == kFailpointVariable;
    if (!name.starts_with(kPrefix) || is_known) continue;
    const auto removed = std::find_if(kRemoved.begin(), kRemoved.end(),
                                      [&](const RemovedRow& row) { return name == row.variable; });
    if (removed != kRemoved.end()) {
      warnings.push_back(name + " is set but has been removed: " + removed->instead);
      continue;
    }
    const std::string meant = LooksLike(name);
    const std::string question = meant.empty() ? "" : "; did you mean " + meant + "?";
    warnings.push_back(name + " is set, but mydist has no such setting" + question);
  }
  return warnings;
}

std::vector<std::string> UnknownVariables() {
  // mydistrun has warned already, unless only the ranks know the settings of an extension.
  const bool has_launcher = std::getenv("MYDIST_FAILURE_TAG") != nullptr;
  if (has_launcher && std::getenv("MYDIST_PLUGINS") == nullptr) return {};
  for (const char* const variable : {"MYDIST_RANK", "OMPI_COMM_WORLD_RANK", "RANK"}) {
    const char* const rank = std::getenv(variable);
    if (rank == nullptr) continue;
    if (rank != std::string_view("0")) return {};  // Once for the job.
    break;
  }
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return UnknownVariables(names);
}

}  // namespace mydist
