// The build report: which backends this build has, and which of them work on this machine.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "backends/factory.h"
#include "mydist/build_config.h"

namespace mydist {
namespace {

BackendReport ReportPlugin(const std::string& name, bool built, const std::string& reason) {
  BackendReport report;
  report.name = name;
  report.built = built;
  if (!built) {
    report.reason = reason;
    return report;
  }
  Result<BackendPlugin*> plugin = LoadPlugin(name);
  if (!plugin.ok()) {
    report.reason = plugin.status().message();
    return report;
  }
  report.available = true;
  report.description = plugin.value()->Description();
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

std::vector<BackendReport> ReportBackends() {
  return {
      ReportLocal(),
      ReportPlugin("mpi", build_config::kMpiBuilt, build_config::kMpiReason),
      ReportPlugin("gloo", build_config::kGlooBuilt, build_config::kGlooReason),
      // A reason from the build (CUDA switched off, not found) would suggest that a rebuild helps.
      ReportPlugin("nccl", false, "the NCCL backend is not part of this version"),
  };
}

}  // namespace mydist

const char* mydist_build_report(void) {
  // Per thread, so that two threads asking at once do not free each other's text.
  thread_local std::string text;
  text = "{\"version\": " + mydist::Quoted(mydist::build_config::kVersion) + ", \"backends\": [";
  bool first = true;
  for (const mydist::BackendReport& report : mydist::ReportBackends()) {
    if (!first) text += ", ";
    first = false;
    text += mydist::Row(report);
  }
  text += "]}";
  return text.c_str();
}
