#include "job/build_report.h"

#include <unistd.h>

#include <functional>
#include <limits>
#include <sstream>

#include "algorithms/device/device_plugin.h"
#include "base/registry.h"
#include "config/config.h"
#include "job/extension.h"
#include "mydist/build_config.h"
#include "timeline/trace_format.h"
#include "transport/registry.h"

namespace mydist {
namespace {

using Folders = std::vector<std::string>;

Result<NcclPlaces> PlacesOf(const Folders& folders) {
  MYDIST_ASSIGN_OR_RETURN(const Config config, Config::FromEnv());
  return NcclPlaces{config.nccl_library, folders};
}

Result<std::string> DescribePlugin(const TransportRow& row) {
  MYDIST_ASSIGN_OR_RETURN(BackendPlugin* const plugin, row.open());
  return plugin->Description();
}

Result<std::string> DescribeNccl(const Folders& folders) {
  MYDIST_ASSIGN_OR_RETURN(const NcclPlaces places, PlacesOf(folders));
  MYDIST_ASSIGN_OR_RETURN(DevicePlugin* const plugin, LoadDevicePlugin());
  return plugin->Description(places);
}

// `describe` is asked for a backend that was built only.
BackendReport ReportOn(const std::string& name, bool built, const std::string& why_not,
                       const std::function<Result<std::string>()>& describe) {
  if (!built) return {.name = name, .reason = why_not};
  const Result<std::string> description = describe();
  if (!description.ok()) {
    return {.name = name, .built = true, .reason = description.status().message()};
  }
  return {.name = name, .built = true, .available = true, .description = *description};
}

BackendReport ReportLocal() {
  const bool available = access("/dev/shm", R_OK | W_OK | X_OK) == 0;
  return {
      .name = "local",
      .built = true,
      .available = available,
      .reason = available ? "" : "/dev/shm is not writable, so only jobs of one rank run",
      .description = "built in; for ranks of one host, through shared memory",
  };
}

// A text of a library may be in any encoding.
std::string Quoted(const std::string& text) {
  return JsonText(text, std::numeric_limits<size_t>::max());
}

std::string Row(const BackendReport& report) {
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  return std::string("{\"name\": ") + Quoted(report.name) +
         ", \"built\": " + boolean(report.built) + ", \"available\": " + boolean(report.available) +
         ", \"reason\": " + Quoted(report.reason) +
         ", \"description\": " + Quoted(report.description) + "}";
}

BackendReport ReportTransport(const TransportRow& row) {
  if (row.is_local()) return ReportLocal();
  return ReportOn(row.name, row.not_built.empty(), row.not_built,
                  [&row] { return DescribePlugin(row); });
}

BackendReport ReportNccl(const Folders& nccl_folders) {
  return ReportOn("nccl", build_config::kCudaBuilt, build_config::kCudaReason,
                  [&] { return DescribeNccl(nccl_folders); });
}

}  // namespace

BackendReport ReportBackend(const std::string& name, const Folders& nccl_folders) {
  std::vector<std::string> names;
  for (const TransportRow& row : Transports()) {
    if (row.name == name) return ReportTransport(row);
    names.push_back(row.name);
  }
  if (name == "nccl") return ReportNccl(nccl_folders);
  names.emplace_back("nccl");
  return ReportOn(name, false, "there is no such backend, expected " + ListOfNames(names), {});
}

std::vector<BackendReport> ReportBackends(const Folders& nccl_folders) {
  std::vector<BackendReport> reports;
  for (const TransportRow& row : Transports()) reports.push_back(ReportTransport(row));
  reports.push_back(ReportNccl(nccl_folders));
  return reports;
}

BackendReport ReportParameterServer() {
  return ReportOn(
      "ps", build_config::kPsBuilt, build_config::kPsReason, []() -> Result<std::string> {
        MYDIST_RETURN_IF_ERROR(PluginFunction("ps", "", "mydist_plugin_version").status());
        return std::string("parameter server, Asio ").append(build_config::kAsioVersion);
      });
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
  // Extensions add rows; what keeps them from it is one.
  const mydist::Status settings = mydist::ConfigWithExtensions().status();
  std::vector<mydist::BackendReport> reports = mydist::ReportBackends(folders);
  reports.push_back(mydist::ReportParameterServer());
  if (!settings.ok()) {
    reports.push_back({.name = "settings", .built = true, .reason = settings.message()});
  }
  bool first = true;
  for (const mydist::BackendReport& report : reports) {
    if (!first) text += ", ";
    first = false;
    text += mydist::Row(report);
  }
  text += "]}";
  return text.c_str();
}
