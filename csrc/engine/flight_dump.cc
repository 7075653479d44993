#include "engine/flight_dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "timeline/trace_format.h"
#include "world/collective_op.h"

namespace mydist {
namespace {

constexpr size_t kMaxTextBytes = 4096;

const char* StateText(FlightState state) {
  switch (state) {
    case FlightState::kWaiting:
      return "waiting";
    case FlightState::kRunning:
      return "running";
    case FlightState::kDone:
      return "done";
    case FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

class JsonObject {
 public:
  explicit JsonObject(std::string& out) : out_(out) { out_ += '{'; }

  JsonObject& Number(std::string_view key, int64_t value) {
    Key(key) += std::to_string(value);
    return *this;
  }
  JsonObject& Text(std::string_view key, std::string_view value) {
    AppendJsonText(value, kMaxTextBytes, Key(key));
    return *this;
  }
  template <typename Numbers>
  JsonObject& List(std::string_view key, const Numbers& numbers) {
    std::string& out = Key(key) += '[';
    bool is_first = true;
    for (const auto number : numbers) {
      if (!std::exchange(is_first, false)) out += ',';
      out += std::to_string(number);
    }
    out += ']';
    return *this;
  }
  // The key alone; its value is appended there.
  std::string& Key(std::string_view key) {
    if (!std::exchange(is_first_, false)) out_ += ',';
    out_ += '"';
    out_ += key;
    out_ += "\":";
    return out_;
  }
  void Close() { out_ += '}'; }
  // Closes it and the line that it stands in.
  void End() { out_ += "}\n"; }

 private:
  std::string& out_;
  bool is_first_ = true;
};

void AppendSets(const FlightRecorder& recorder, std::string& out) {
  JsonObject sets(out);
  for (const auto& [id, ranks] : recorder.ProcessSets()) sets.List(std::to_string(id), ranks);
  sets.Close();
}

void AppendNames(const FlightRecorder& recorder, std::string& out) {
  JsonObject names(out);
  for (const auto& [id, name] : recorder.GroupNames()) names.Text(std::to_string(id), name);
  names.Close();
}

void AppendRecord(const FlightRecord& record, std::string& out) {
  JsonObject line(out);
  line.Number("n", record.number).Number("set", record.process_set).Number("run", record.run);
  const std::optional<OpKind> op = OpKindFromWire(record.op);
  line.Text("op", op ? OpKindName(*op) : "join");
  if (op && HasData(*op)) {
    if (const auto dtype = DataTypeFromWire(record.dtype)) line.Text("dtype", DataTypeName(*dtype));
    const size_t dim_count = std::min<size_t>(record.dim_count, FlightRecord::kMaxDims);
    line.List("shape", std::vector<int64_t>(record.dims.begin(), record.dims.begin() + dim_count));
    line.Number("dims", record.dim_count).Number("elements", record.element_count);
    line.Text("device", record.device == kCpuDevice ? "CPU" : "GPU");
  }
  if (op && Reduces(*op)) {
    if (const auto reduce = ReduceOpFromWire(record.reduce_op)) {
      line.Text("reduce", ReduceOpName(*reduce));
    }
  }
  if (op && HasRoot(*op)) line.Number("root", record.root);
  if (op == OpKind::kSendReceive) line.List("ranks", std::array{record.root, record.receiver});
  line.Text("name", record.NameText());
  if (record.is_name_cut()) {
    char hash[20];
    std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(record.name_hash));
    line.Number("name_bytes", record.name_bytes).Text("name_hash", hash);
  }
  line.Text("state", StateText(record.state));
  if (record.state == FlightState::kFailed) {
    line.Text("code", StatusCodeName(static_cast<StatusCode>(record.code)));
  }
  line.Number("submitted_ns", record.submitted_ns)
      .Number("begun_ns", record.begun_ns)
      .Number("ended_ns", record.ended_ns)
      .End();
}

Status CannotWrite(const std::string& path, int error) {
  return Status::Internal("cannot write the flight recorder to '" + path +
                          "': " + std::strerror(error) + " (errno " + std::to_string(error) + ")");
}

bool WriteAll(int descriptor, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

std::string FlightDumpName(FlightDumpKind kind, int rank) {
  const char* const begin =
      kind == FlightDumpKind::kJob ? "flight_recorder_rank" : "flight_recorder_groups_rank";
  return begin + std::to_string(rank) + ".json";
}

std::string FlightDumpText(const FlightDumpHeader& header, const FlightRecorder& recorder) {
  const std::vector<FlightRecord> records = recorder.Read();
  std::string text;
  JsonObject head(text);
  head.Number("mydist_flight_recorder", kFlightDumpFormat)
      .Text("version", header.version)
      .Number("rank", header.rank)
      .Number("size", header.size)
      .Text("host", header.host)
      .Number("pid", header.pid)
      .Text("reason", header.reason)
      .Text("message", header.message)
      .Number("wall_ns", header.wall_ns)
      .Number("monotonic_ns", header.monotonic_ns)
      .Number("started_wall_ns", header.started_wall_ns)
      .Number("submitted", recorder.submitted_count())
      .Number("dropped", recorder.dropped_count());
  AppendSets(recorder, head.Key("process_sets"));
  if (header.kind == FlightDumpKind::kGroups) AppendNames(recorder, head.Key("group_names"));
  head.End();
  for (const FlightRecord& record : records) AppendRecord(record, text);
  JsonObject(text).Number("end", static_cast<int64_t>(records.size())).End();
  return text;
}

Status WriteFlightDump(const std::string& folder, const std::string& name,
                       const std::string& text) {
  std::error_code error;
  if (std::filesystem::create_directories(folder, error); error) {
    return CannotWrite(folder, error.value());
  }
  const std::string path = folder + "/" + name;
  const std::string part = folder + "/." + name + "." + std::to_string(getpid());
  ::unlink(part.c_str());  // Of an earlier process of that number, if there is one.
  const int descriptor =
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0) return CannotWrite(part, errno);
  const bool is_written = WriteAll(descriptor, text);
  const int write_error = errno;
  const bool is_closed = ::close(descriptor) == 0;
  if (is_written && is_closed && ::rename(part.c_str(), path.c_str()) == 0) return Status::Ok();
  const Status failed = CannotWrite(path, is_written ? errno : write_error);
  ::unlink(part.c_str());
  return failed;
}

}  // namespace mydist
