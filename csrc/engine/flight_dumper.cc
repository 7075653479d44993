#include "engine/flight_dumper.h"

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"
#include "timeline/trace_format.h"
#include "world/collective_op.h"

namespace mydist {
namespace {

constexpr const char* kDefaultFolder = "mydist_flight_recorder";
// How long the end of a job may wait for the disk.
constexpr std::chrono::seconds kDiskGrace{5};

// One for each FlightDumper. Never freed: a signal handler may still have it in hand.
struct Doorbell {
  std::atomic<bool> is_taken{false};
  std::atomic<bool> by_signal{false};
  sem_t rings;
};
constexpr size_t kDoorbellCount = 64;

std::array<Doorbell, kDoorbellCount>& Doorbells() {
  static auto* const kDoorbells = [] {
    auto* const bells = new std::array<Doorbell, kDoorbellCount>;
    for (Doorbell& bell : *bells) sem_init(&bell.rings, 0, 0);
    return bells;
  }();
  return *kDoorbells;
}

// What the handler reads: set before it is installed.
std::atomic<std::array<Doorbell, kDoorbellCount>*> g_doorbells{nullptr};
std::atomic<pid_t> g_owner{0};

using Handler = void (*)(int);
// What the disposition has to be for the signal to be ours: the handler below, or what lies on top.
std::atomic<Handler> g_expected{nullptr};
std::atomic<bool> g_is_by_self{false};

void OnQuit(int) {
  const int saved_errno = errno;
  auto* const bells = g_doorbells.load();
  const bool is_for_us = getpid() == g_owner.load() && !g_is_by_self.exchange(false);
  if (bells != nullptr && is_for_us) {
    for (Doorbell& bell : *bells) {
      if (!bell.is_taken.load()) continue;
      bell.by_signal.store(true);
      sem_post(&bell.rings);
    }
  }
  errno = saved_errno;
}

// sa_handler and sa_sigaction lie in one place.
Handler CurrentHandler() {
  struct sigaction current {};
  return sigaction(SIGQUIT, nullptr, &current) == 0 ? current.sa_handler : SIG_DFL;
}

Doorbell* TakeDoorbell() {
  for (Doorbell& bell : Doorbells()) {
    if (!bell.is_taken.exchange(true)) return &bell;
  }
  return nullptr;
}

int64_t WallNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr const char* kOccasions[] = {"failure", "stall", "signal"};         // By FlightOccasion.
constexpr const char* kStates[] = {"waiting", "running", "done", "failed"};  // By FlightState.
constexpr size_t kMaxTextBytes = 4096;

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
  line.Text("state", kStates[static_cast<size_t>(record.state)]);
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

bool InstallQuitHandler() {
  if (g_expected.load() && CurrentHandler() == g_expected.load()) {
    g_owner.store(getpid());  // A forked child that takes part in a job itself.
    return false;
  }
  if (CurrentHandler() != SIG_DFL) return false;
  g_doorbells.store(&Doorbells());
  g_owner.store(getpid());
  struct sigaction action {};
  action.sa_handler = &OnQuit;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGQUIT, &action, nullptr) != 0) return false;
  g_expected.store(&OnQuit);
  return true;
}

void NoteQuitHandlerOnTop() { g_expected.store(CurrentHandler()); }

bool IsQuitOurs() {
  const Handler expected = g_expected.load();
  return expected != nullptr && getpid() == g_owner.load() && CurrentHandler() == expected;
}

bool SendQuitToSelf() {
  if (!IsQuitOurs()) return false;
  g_is_by_self.store(true);
  return kill(getpid(), SIGQUIT) == 0;
}

// Shared with the thread, which may be left behind with a disk that hangs.
struct FlightDumper::Shared {
  std::shared_ptr<const FlightRecorder> recorder;
  FlightDumperOptions options;
  std::string signal_folder;  // Where a signal makes it write.
  Doorbell* bell = nullptr;

  Mutex mutex;
  CondVar ended;
  bool is_ending MYDIST_GUARDED_BY(mutex) = false;
  bool has_ended MYDIST_GUARDED_BY(mutex) = false;
  std::optional<FlightOccasion> occasion MYDIST_GUARDED_BY(mutex);
  bool has_failed MYDIST_GUARDED_BY(mutex) = false;
  std::string message MYDIST_GUARDED_BY(mutex);
  bool has_hinted MYDIST_GUARDED_BY(mutex) = false;

  std::thread thread;
  bool has_warned = false;  // Of the thread.
  bool has_told = false;

  void Run();
  // Nothing: it is time to end.
  std::optional<FlightOccasion> NextOccasion();
  void Write(FlightOccasion occasion);
  void Hint();
};

std::shared_ptr<FlightDumper> FlightDumper::Start(std::shared_ptr<const FlightRecorder> recorder,
                                                  FlightDumperOptions options) {
  Doorbell* const bell = TakeDoorbell();
  if (bell == nullptr) {
    MYDIST_LOG(kWarning) << "this process has too many jobs at once; the flight recorder of this "
                            "one writes no dumps";
    return nullptr;
  }
  bell->by_signal.store(false);
  auto shared = std::make_shared<Shared>();
  shared->recorder = std::move(recorder);
  shared->options = std::move(options);
  shared->bell = bell;
  shared->options.header.started_wall_ns = WallNanoseconds();
  std::error_code error;
  const std::string& folder = shared->options.folder;
  const auto absolute = std::filesystem::absolute(folder.empty() ? kDefaultFolder : folder, error);
  shared->signal_folder = error ? folder : absolute.string();
  if (!folder.empty()) shared->options.folder = shared->signal_folder;
  auto thread = StartThread("mydist-recorder", "for the flight recorder", [shared] {
    shared->Run();
    shared->bell->is_taken.store(false);
    MutexLock lock(shared->mutex);
    shared->has_ended = true;
    shared->ended.NotifyAll();
  });
  if (!thread.ok()) {
    bell->is_taken.store(false);
    MYDIST_LOG(kWarning) << thread.status().message() << " The flight recorder writes no dumps.";
    return nullptr;
  }
  shared->thread = std::move(thread).value();
  return std::shared_ptr<FlightDumper>(new FlightDumper(std::move(shared)));
}

FlightDumper::~FlightDumper() {
  const TimePoint deadline = Now() + kDiskGrace;
  bool has_ended = false;
  {
    MutexLock lock(shared_->mutex);
    shared_->is_ending = true;
    sem_post(&shared_->bell->rings);
    while (!shared_->has_ended && shared_->ended.WaitUntil(shared_->mutex, deadline)) {
    }
    has_ended = shared_->has_ended;
  }
  if (has_ended) {
    shared_->thread.join();
  } else {
    MYDIST_LOG(kWarning) << "shutdown() ends before the flight recorder is written; its disk is "
                            "slow";
    shared_->thread.detach();
  }
}

void FlightDumper::Request(FlightOccasion occasion, const std::string& message) {
  Shared& shared = *shared_;
  MutexLock lock(shared.mutex);
  const bool is_failure = occasion == FlightOccasion::kFailure;
  if (is_failure ? !std::exchange(shared.has_failed, true) : !shared.has_failed) {
    shared.message = message;
  }
  if (shared.options.folder.empty()) {
    if (!is_failure && !std::exchange(shared.has_hinted, true)) shared.Hint();
    return;
  }
  if (!shared.occasion || is_failure) shared.occasion = occasion;
  sem_post(&shared.bell->rings);
}

void FlightDumper::Shared::Hint() {
  if (!options.tells_user || g_expected.load() == nullptr) return;
  MYDIST_LOG(kWarning) << "SIGQUIT (Ctrl-\\ at mydistrun) makes each rank write its last "
                          "operations to "
                       << signal_folder << "; `python -m mydist.debug` with this folder compares "
                       << "the ranks";
}

void FlightDumper::Shared::Run() {
  while (const std::optional<FlightOccasion> next = NextOccasion()) Write(*next);
}

std::optional<FlightOccasion> FlightDumper::Shared::NextOccasion() {
  for (;;) {
    {
      MutexLock lock(mutex);
      const bool by_signal = bell->by_signal.exchange(false);
      const auto next = std::exchange(occasion, std::nullopt);
      if (next) return next;
      if (by_signal) return FlightOccasion::kSignal;
      if (is_ending) return std::nullopt;
    }
    while (sem_wait(&bell->rings) != 0 && errno == EINTR) {
    }
  }
}

void FlightDumper::Shared::Write(FlightOccasion occasion_now) {
  FlightDumpHeader header = options.header;
  header.reason = kOccasions[static_cast<size_t>(occasion_now)];
  {
    MutexLock lock(mutex);
    header.message = message;
  }
  header.wall_ns = WallNanoseconds();
  header.monotonic_ns = ToNanoseconds(Now());
  const Status written = WriteFlightDump(signal_folder, FlightDumpName(header.kind, header.rank),
                                         FlightDumpText(header, *recorder));
  if (!written.ok()) {
    if (!std::exchange(has_warned, true)) MYDIST_LOG(kWarning) << written.message();
    return;
  }
  if (!options.tells_user || std::exchange(has_told, true)) return;
  MYDIST_LOG(kWarning) << "the last operations of each rank are in " << signal_folder
                       << "; `python -m mydist.debug " << signal_folder << "` compares the ranks";
}

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
