#include "job/hello.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "mydist/build_config.h"

namespace mydist {
namespace {

constexpr std::string_view kMagic = "mydist hello 2";

std::map<std::string, std::string> ParseDigest(const std::string& digest) {
  std::map<std::string, std::string> values;
  std::istringstream lines(digest);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return values;
}

std::string Where(const std::vector<Hello>& hellos, size_t rank) {
  return "rank " + std::to_string(rank) + " (host " + hellos[rank].host + ", pid " +
         std::to_string(hellos[rank].pid) + ")";
}

// One row per run of ranks with the same value.
std::string Table(const std::vector<Hello>& hellos, const std::vector<std::string>& values) {
  std::string table;
  for (size_t first = 0; first < values.size();) {
    size_t last = first;
    while (last + 1 < values.size() && values[last + 1] == values[first]) ++last;
    table += "\n  " + Where(hellos, first);
    if (last > first) table += " to rank " + std::to_string(last);
    table += ": " + values[first];
    first = last + 1;
  }
  return table;
}

Status CompareVersions(const std::vector<Hello>& hellos) {
  std::vector<std::string> builds;
  bool equal = true;
  for (const Hello& hello : hellos) {
    builds.push_back("mydist " + hello.version + " on " + hello.platform);
    equal = equal && builds.back() == builds.front();
  }
  if (equal) return Status::Ok();
  return Status::VersionMismatch(
      "the ranks run different builds of mydist; install the same one everywhere:" +
      Table(hellos, builds));
}

Status CompareConfigs(const std::vector<Hello>& hellos) {
  std::vector<std::map<std::string, std::string>> digests;
  // Of all ranks: a digest has a setting of an extension only where it is set.
  std::set<std::string> variables;
  for (const Hello& hello : hellos) {
    digests.push_back(ParseDigest(hello.config_digest));
    for (const auto& [variable, value] : digests.back()) variables.insert(variable);
  }
  for (const std::string& variable : variables) {
    std::vector<std::string> values;
    for (auto& digest : digests) values.push_back(digest[variable]);
    const auto is_first = [&](const std::string& value) { return value == values.front(); };
    if (std::all_of(values.begin(), values.end(), is_first)) continue;
    return Status::Mismatch(variable +
                            " must be the same on every rank; set it in one place, or let "
                            "mydistrun pass it on:" +
                            Table(hellos, values));
  }
  return Status::Ok();
}

}  // namespace

Hello MakeHello(std::string host, std::string config_digest) {
  Hello hello;
  hello.version = build_config::kVersion;
  hello.platform = std::string(std::endian::native == std::endian::little ? "little" : "big") +
                   "-endian " + std::to_string(8 * sizeof(void*)) + "-bit";
  hello.host = std::move(host);
  hello.pid = getpid();
  hello.config_digest = std::move(config_digest);
  return hello;
}

std::vector<uint8_t> EncodeHello(const Hello& hello) {
  std::ostringstream text;
  text << kMagic << "\n"
       << hello.version << "\n"
       << hello.platform << "\n"
       << hello.host << "\n"
       << hello.pid << "\n"
       << (hello.wants_timeline ? "timeline" : "-") << "\n"
       << hello.cores.ToText() << "\n"
       << hello.config_digest;
  const std::string bytes = text.str();
  return {bytes.begin(), bytes.end()};
}

Result<Hello> DecodeHello(const std::vector<uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  std::string magic;
  std::string pid;
  std::string timeline;
  std::string cores_text;
  Hello hello;
  std::getline(text, magic);
  std::getline(text, hello.version);
  std::getline(text, hello.platform);
  std::getline(text, hello.host);
  std::getline(text, pid);
  std::getline(text, timeline);
  std::getline(text, cores_text);
  const std::optional<UsableCores> cores = UsableCores::FromText(cores_text);
  const auto parsed = std::from_chars(pid.data(), pid.data() + pid.size(), hello.pid);
  if (!text || magic != kMagic || !cores || parsed.ec != std::errc() ||
      parsed.ptr != pid.data() + pid.size()) {
    return Status::VersionMismatch(
        "a peer does not run mydist " + std::string(build_config::kVersion) +
        ", as this rank does; install the same version of mydist on every host");
  }
  hello.wants_timeline = timeline == "timeline";
  hello.cores = *cores;
  std::ostringstream digest;
  digest << text.rdbuf();
  hello.config_digest = digest.str();
  return hello;
}

Status CompareHellos(const std::vector<Hello>& hellos) {
  MYDIST_RETURN_IF_ERROR(CompareVersions(hellos));
  return CompareConfigs(hellos);
}

}  // namespace mydist
