#include "job/hello.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/own_sockets.h"
#include "base/process.h"
#include "mydist/build_config.h"
#include "world/process_set.h"

namespace mydist {
namespace {

constexpr std::string_view kMagic = "mydist hello ";
// More values of one setting are counted, not listed.
constexpr size_t kMaxRows = 16;

template <typename Integer>
bool Parse(std::string_view text, Integer* number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

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

// A value and the ranks that have it, ascending.
struct Group {
  std::string value;
  std::vector<int32_t> ranks;
};

// One fact of all ranks, by value: in the order of the first rank that has it.
std::vector<Group> GroupsOf(const std::vector<std::string>& values) {
  std::vector<Group> groups;
  std::map<std::string, size_t> places;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const auto [place, is_new] = places.emplace(values[rank], groups.size());
    if (is_new) groups.push_back({values[rank], {}});
    groups[place->second].ranks.push_back(static_cast<int32_t>(rank));
  }
  return groups;
}

// What differs between ranks: the text about it, and the ranks that differ from most others.
class Differences {
 public:
  explicit Differences(const std::vector<Hello>& hellos) {
    for (const Hello& hello : hellos) {
      hosts_.push_back(hello.host);
      pids_.push_back(hello.pid);
    }
  }

  // One row for each value.
  std::string Table(const std::vector<Group>& groups) const {
    std::string table;
    size_t unlisted_count = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const Group& group = groups[i];
      if (i >= kMaxRows) {
        unlisted_count += group.ranks.size();
        continue;
      }
      table += "\n  " + RankListText(group.ranks) + HostListText(group.ranks, hosts_, pids_) +
               ": " + group.value;
    }
    if (unlisted_count == 0) return table;
    return table + "\n  " + std::to_string(unlisted_count) + " more ranks have other values";
  }

  void Blame(const std::vector<Group>& groups) {
    const auto usual = std::max_element(
        groups.begin(), groups.end(),
        [](const Group& a, const Group& b) { return a.ranks.size() < b.ranks.size(); });
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group != usual) blamed_.insert(group->ranks.begin(), group->ranks.end());
    }
  }

  Failure Record() const {
    Failure record{.ranks = {blamed_.begin(), blamed_.end()}};
    std::set<std::string> hosts;
    for (const int rank : record.ranks) {
      record.hosts.push_back(hosts_[static_cast<size_t>(rank)]);
      record.pids.push_back(pids_[static_cast<size_t>(rank)]);
      hosts.insert(record.hosts.back());
    }
    if (hosts.size() == 1) record.host = *hosts.begin();
    if (record.ranks.size() == 1) record.pid = record.pids.front();
    return record;
  }

 private:
  std::vector<std::string> hosts_;
  std::vector<int64_t> pids_;
  std::set<int> blamed_;
};

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

Status CompareVersions(const std::vector<Hello>& hellos) {
  struct Property {
    const char* name;
    std::string (*of)(const Hello& hello);
  };
  const Property properties[] = {
      {"version", [](const Hello& hello) { return "mydist " + hello.version; }},
      {"protocol", [](const Hello& hello) { return "protocol " + std::to_string(hello.protocol); }},
      {"platform", [](const Hello& hello) { return hello.platform; }},
  };
  std::vector<std::string> builds(hellos.size());
  std::vector<std::string> differing;
  for (const Property& property : properties) {
    const std::string first = property.of(hellos.front());
    bool differs = false;
    for (size_t rank = 0; rank < hellos.size(); ++rank) {
      const std::string value = property.of(hellos[rank]);
      builds[rank] += (builds[rank].empty() ? "" : ", ") + value;
      differs = differs || value != first;
    }
    if (differs) differing.emplace_back(property.name);
  }
  if (differing.empty()) return Status::Ok();
  Differences differences(hellos);
  const std::vector<Group> groups = GroupsOf(builds);
  differences.Blame(groups);
  return Status::VersionMismatch(
             "the ranks run different builds of mydist, which differ in their " +
             Joined(differing) + "; install the same one everywhere:" + differences.Table(groups))
      .About(differences.Record());
}

Status CompareConfigs(const std::vector<Hello>& hellos) {
  std::vector<std::map<std::string, std::string>> digests;
  // Of all ranks: a digest has a setting of an extension only where it is set.
  std::set<std::string> variables;
  for (const Hello& hello : hellos) {
    digests.push_back(ParseDigest(hello.config_digest));
    for (const auto& [variable, value] : digests.back()) variables.insert(variable);
  }
  Differences differences(hellos);
  std::vector<std::string> differing;
  std::vector<std::string> tables;
  for (const std::string& variable : variables) {
    std::vector<std::string> values;
    for (const auto& digest : digests) {
      const auto found = digest.find(variable);
      values.push_back(found == digest.end() ? "unset" : found->second);
    }
    const std::vector<Group> groups = GroupsOf(values);
    if (groups.size() == 1) continue;
    differing.push_back(variable);
    tables.push_back(differences.Table(groups));
    differences.Blame(groups);
  }
  if (differing.empty()) return Status::Ok();
  const bool is_one = differing.size() == 1;
  std::string text = Joined(differing) + " must be the same on every rank; set " +
                     (is_one ? "it" : "them") + " in one place, or let mydistrun pass " +
                     (is_one ? "it" : "them") + " on:";
  for (size_t i = 0; i < differing.size(); ++i) {
    text += (is_one ? "" : "\n" + differing[i] + ":") + tables[i];
  }
  return Status::Mismatch(text).About(differences.Record());
}

Status NoHello() {
  return Status::VersionMismatch("a peer does not run mydist " +
                                 std::string(build_config::kVersion) +
                                 ", as this rank does; install the same version of mydist on "
                                 "every host");
}

}  // namespace

OpenFiles OpenFiles::OfThisProcess() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  OpenFiles files{.free_count = -1, .limit = static_cast<int64_t>(limit.rlim_cur)};
  const std::optional<std::set<int>> open = OpenDescriptors();
  if (!open) {
    if (errno == EMFILE) files.free_count = 0;
    return files;
  }
  // Descriptors from before a limit was lowered may be above it.
  const auto counts = [&](int descriptor) { return descriptor < files.limit; };
  const int64_t used_count = std::count_if(open->begin(), open->end(), counts);
  files.free_count = files.limit - used_count;
  return files;
}

Hello MakeHello(std::string host, std::string config_digest) {
  Hello hello;
  hello.version = build_config::kVersion;
  hello.platform = std::string(std::endian::native == std::endian::little ? "little" : "big") +
                   "-endian " + std::to_string(8 * sizeof(void*)) + "-bit";
  hello.host = std::move(host);
  hello.pid = getpid();
  hello.pid_namespace = PidNamespace();
  hello.config_digest = std::move(config_digest);
  return hello;
}

Result<Topology> TopologyOf(int rank, const std::vector<Hello>& hellos) {
  std::vector<std::string> hosts;
  for (const Hello& hello : hellos) hosts.push_back(hello.host);
  MYDIST_ASSIGN_OR_RETURN(Topology topology, MakeTopology(rank, std::move(hosts)));
  const Hello& mine = hellos[static_cast<size_t>(rank)];
  for (const Hello& hello : hellos) {
    topology.pids.push_back(hello.pid);
    topology.seen_pids.push_back(mine.Sees(hello) ? hello.pid : 0);
  }
  return topology;
}

bool IsCrowded(const std::vector<Hello>& hellos, const std::string& host) {
  std::vector<UsableCores> here;
  for (const Hello& hello : hellos) {
    if (hello.host == host) here.push_back(hello.cores);
  }
  return !HaveACoreEach(here);
}

std::vector<uint8_t> EncodeHello(const Hello& hello) {
  std::ostringstream text;
  text << kMagic << hello.protocol << "\n"
       << hello.version << "\n"
       << hello.platform << "\n"
       << hello.host << "\n"
       << hello.pid << "\n"
       << (hello.wants_timeline ? "timeline" : "-") << "\n"
       << hello.pid_namespace << "\n"
       << hello.cores.ToText() << "\n"
       << hello.files.free_count << "\n"
       << hello.files.limit << "\n"
       << hello.config_digest;
  const std::string bytes = text.str();
  return {bytes.begin(), bytes.end()};
}

Result<Hello> DecodeHello(const std::vector<uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  const auto line = [&text] {
    std::string found;
    std::getline(text, found);
    return found;
  };
  Hello hello;
  const std::string magic = line();
  hello.version = line();
  hello.platform = line();
  hello.host = line();
  const std::string pid = line();
  if (!text || !magic.starts_with(kMagic) || !Parse(pid, &hello.pid) ||
      !Parse(std::string_view(magic).substr(kMagic.size()), &hello.protocol)) {
    return NoHello();
  }
  if (hello.protocol != kProtocol) return hello;
  hello.wants_timeline = line() == "timeline";
  hello.pid_namespace = line();
  std::optional<UsableCores> cores = UsableCores::FromText(line());
  const std::string free_count = line();
  const std::string limit = line();
  if (!text || !cores || !Parse(free_count, &hello.files.free_count) ||
      !Parse(limit, &hello.files.limit)) {
    return NoHello();
  }
  hello.cores = *std::move(cores);
  std::ostringstream digest;
  digest << text.rdbuf();
  hello.config_digest = digest.str();
  return hello;
}

Result<std::vector<Hello>> DecodeHellos(const std::vector<std::vector<uint8_t>>& blobs) {
  std::vector<Hello> hellos;
  for (const std::vector<uint8_t>& blob : blobs) {
    Result<Hello> hello = DecodeHello(blob);
    const int rank = static_cast<int>(hellos.size());
    if (!hello.ok()) {
      return hello.status().WithContext("rank " + std::to_string(rank)).About({.ranks = {rank}});
    }
    hellos.push_back(std::move(hello).value());
  }
  return hellos;
}

Status CompareHellos(const std::vector<Hello>& hellos) {
  MYDIST_RETURN_IF_ERROR(CompareVersions(hellos));
  return CompareConfigs(hellos);
}

Status CheckOpenFiles(const std::vector<Hello>& hellos, int64_t needed_count) {
  for (size_t rank = 0; rank < hellos.size(); ++rank) {
    const Hello& hello = hellos[rank];
    const int64_t free_count = hello.files.free_count;
    if (free_count < 0 || free_count >= needed_count) continue;
    return Status::Internal("rank " + std::to_string(rank) + " (host " + hello.host + ", pid " +
                            std::to_string(hello.pid) + ") can open " + std::to_string(free_count) +
                            " more files, and a job of " + std::to_string(hellos.size()) +
                            " ranks needs at least " + std::to_string(needed_count) +
                            " on each. Its limit is " + std::to_string(hello.files.limit) +
                            "; raise it with `ulimit -n` before the start")
        .About({.ranks = {static_cast<int>(rank)},
                .host = hello.host,
                .pid = hello.pid,
                .hosts = {hello.host},
                .pids = {hello.pid}});
  }
  return Status::Ok();
}

}  // namespace mydist
