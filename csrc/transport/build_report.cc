// The build report: which backends this build has, and which of them work on this machine.

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "mydist/build_config.h"
#include "transport/factory.h"

namespace mydist {
namespace {

using Folders = std::vector<std::string>;

Result<NcclPlaces> PlacesOf(const Folders& folders) {
  MYDIST_ASSIGN_OR_RETURN(const Config config, Config::FromEnv());
  return NcclPlaces{config.nccl_library, folders};
}

Result<std::string> DescribePlugin(const std::string& name) {
  MYDIST_ASSIGN_OR_RETURN(BackendPlugin* const plugin, LoadPlugin(name));
  return plugin->Description();
}

Result<std::string> DescribeNccl(const Folders& folders) {
  MYDIST_ASSIGN_OR_RETURN(const NcclPlaces places, PlacesOf(folders));
  MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
  return plugin->Description(places);
}

// `describe` is asked for a backend that was built only.
BackendReport Report(const std::string& name, bool built, const std::string& why_not,
                     const std::function<Result<std::string>()>& describe) {
  BackendReport report;
  report.name = name;
  report.built = built;
  report.reason = why_not;
  if (!built) return report;
  const Result<std::string> description = describe();
  report.available = description.ok();
  report.reason = description.ok() ? "" : description.status().message();
  report.description = description.ok() ? *description : "";
  return report;
}

BackendReport ReportLocal() {
  BackendReport report;
  report.name = "local";
  report.built = true;
  report.available = access("/dev/shm", R_OK | W_OK | X_OK) == 0;
  if (!report.available) report.reason = "/dev/shm cannot be written: only jobs of one rank";
  report.description = "built in; ranks of one host, through shared memory";
  return report;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      // Library texts may be in any encoding; escaping every other byte keeps the JSON valid.
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Row(const BackendReport& report) {
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  return std::string("{\"name\": ") + Quoted(report.name) +
         ", \"built\": " + boolean(report.built) + ", \"available\": " + boolean(report.available) +
         ", \"reason\": " + Quoted(report.reason) +
         ", \"description\": " + Quoted(report.description) + "}";
}

}  // namespace

BackendReport ReportBackend(const std::string& name, const Folders& nccl_folders) {
  const auto describe = [&] { return DescribePlugin(name); };
  if (name == "local") return ReportLocal();
  if (name == "mpi")
    return Report(name, build_config::kMpiBuilt, build_config::kMpiReason, describe);
  if (name == "gloo") {
    return Report(name, build_config::kGlooBuilt, build_config::kGlooReason, describe);
  }
  if (name == "nccl") {
    return Report(name, build_config::kCudaBuilt, build_config::kCudaReason,
                  [&] { return DescribeNccl(nccl_folders); });
  }
  return Report(name, false, "there is no such backend, expected local, mpi, gloo or nccl", {});
}

std::vector<BackendReport> ReportBackends(const Folders& nccl_folders) {
  std::vector<BackendReport> reports;
  for (const char* name : {"local", "mpi", "gloo", "nccl"}) {
    reports.push_back(ReportBackend(name, nccl_folders));
  }
  return reports;
}

std::string NcclVersionText(int version) {
  // Before 2.9 it was 2804 for 2.8.4.
  const int major_unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) +
         "." + std::to_string(version % 100);
}

Result<int> FindNcclVersion(const Folders& nccl_folders) {
  MYDIST_ASSIGN_OR_RETURN(const NcclPlaces places, PlacesOf(nccl_folders));
  MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
  return plugin->NcclVersion(places);
}

}  // namespace mydist

const char* mydist_build_report(const char* nccl_folders) {
  std::vector<std::string> folders;
  std::istringstream list(nccl_folders != nullptr ? nccl_folders : "");
  for (std::string folder; std::getline(list, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  // Per thread, so that two threads asking at once do not free each other's text.
  thread_local std::string text;
  text = "{\"version\": " + mydist::Quoted(mydist::build_config::kVersion) + ", \"backends\": [";
  bool first = true;
  for (const mydist::BackendReport& report : mydist::ReportBackends(folders)) {
    if (!first) text += ", ";
    first = false;
    text += mydist::Row(report);
  }
  text += "]}";
  return text.c_str();
}

namespace mydist {

Result<std::vector<Bytes>> BootstrapRound(const BootstrapExchange& exchange, int size,
                                          const Bytes& mine) {
  MYDIST_ASSIGN_OR_RETURN(std::vector<Bytes> all, exchange(mine));
  if (all.size() != static_cast<size_t>(size)) {
    return Status::Internal("the rendezvous answered for " + std::to_string(all.size()) +
                            " ranks, expected " + std::to_string(size) +
                            "; is a rendezvous of another job still running?");
  }
  return all;
}

}  // namespace mydist
