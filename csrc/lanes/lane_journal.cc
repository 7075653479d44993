#include "lanes/lane_journal.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "job/job.h"
#include "mydist/build_config.h"

namespace mydist {
namespace {

LaneCounters g_counters;

// All journals of this process. A forked child has none of its parent's threads, and needs journals
// of its own.
struct Shelf {
  Mutex mutex;
  std::map<std::pair<pid_t, int>, std::weak_ptr<LaneJournal>> journals MYDIST_GUARDED_BY(mutex);
};

// Never freed: lanes may end after static objects.
Shelf& TheShelf() {
  static auto* const kShelf = new Shelf;
  return *kShelf;
}

// Of this rank's tensor.
int64_t BytesOf(const LaneCall& call) {
  const auto sum = [](const std::vector<int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0});
  };
  if (call.count >= 0) return HasData(call.op) ? call.count * SizeOf(call.dtype) : 0;
  return std::max(sum(call.sends), sum(call.receives));
}

std::string UpperCase(std::string_view text) {
  std::string upper(text);
  for (char& letter : upper) letter = static_cast<char>(std::toupper(letter));
  return upper;
}

// "runs/trace.json" → "runs/trace.rank3.json".
std::string PathOfRank(const std::string& path, int rank) {
  const std::filesystem::path whole(path);
  std::filesystem::path name = whole.stem();
  name += ".rank" + std::to_string(rank);
  name += whole.extension();
  return (whole.parent_path() / name).string();
}

FlightDumperOptions DumperOptionsOf(const LaneJournal::Site& site, const Config& config) {
  return {.folder = config.flight_recorder_folder,
          .header = {.kind = FlightDumpKind::kGroups,
                     .rank = site.rank,
                     .size = site.size,
                     .host = site.host,
                     .pid = getpid(),
                     .version = build_config::kVersion,
                     .reason = "",
                     .message = ""},
          .tells_user = site.tells_user};
}

FlightRecord RecordOf(const LaneJournal::Message& message) {
  FlightRecord record;
  record.op = static_cast<uint8_t>(OpKind::kSendReceive);
  record.dtype = static_cast<uint8_t>(DataType::kUint8);
  record.root = message.sender;
  record.receiver = message.receiver;
  record.element_count = message.bytes;
  record.dim_count = 1;
  record.dims[0] = message.bytes;
  return record;
}

std::string BytesText(const LaneJournal::Message& message) {
  return std::to_string(message.bytes) + " bytes";
}

std::string TagText(int tag) { return "tag " + std::to_string(tag); }

}  // namespace

std::shared_ptr<LaneJournal> LaneJournal::Of(const Site& site, const Config& config) {
  Shelf& shelf = TheShelf();
  MutexLock lock(shelf.mutex);
  std::weak_ptr<LaneJournal>& known = shelf.journals[{getpid(), site.rank}];
  std::shared_ptr<LaneJournal> journal = known.lock();
  if (journal == nullptr) {
    journal = std::make_shared<LaneJournal>(site, config);
    known = journal;
  }
  return journal;
}

LaneCounts LaneJournal::ProcessCounts() { return g_counters.counts(); }

std::vector<std::shared_ptr<LaneJournal>> LaneJournal::OfProcess() {
  std::vector<std::shared_ptr<LaneJournal>> journals;
  Shelf& shelf = TheShelf();
  MutexLock lock(shelf.mutex);
  for (const auto& [key, known] : shelf.journals) {
    if (auto journal = known.lock(); journal != nullptr && key.first == getpid()) {
      journals.push_back(std::move(journal));
    }
  }
  return journals;
}

std::vector<std::shared_ptr<const LaneJournal::Page>> LaneJournal::Pages() {
  std::vector<std::shared_ptr<const Page>> pages;
  for (const auto& journal : OfProcess()) {
    for (auto& page : journal->OwnPages()) pages.push_back(std::move(page));
  }
  return pages;
}

Status LaneJournal::LastFailure() {
  Status last;
  for (const auto& journal : OfProcess()) {
    if (const Status failure = journal->last_failure(); !failure.ok()) last = failure;
  }
  return last;
}

Status LaneJournal::last_failure() {
  MutexLock lock(mutex_);
  return last_failure_;
}

LaneJournal::LaneJournal(Site site, const Config& config)
    : site_(std::move(site)),
      timeline_path_(config.timeline_path),
      dumper_(FlightDumper::Start(recorder_, DumperOptionsOf(site_, config))) {}

std::shared_ptr<LaneJournal::Page> LaneJournal::AddGroup(const std::string& name,
                                                         const std::vector<int>& ranks) {
  auto page = std::make_shared<Page>();
  page->name = name;
  page->track = "group '" + name + "'";
  MutexLock lock(mutex_);
  const std::string key = name + "#" + std::to_string(++openings_[name]);
  page->number = static_cast<int32_t>(std::hash<std::string>{}(key)&0x7fffffff);
  recorder_->NoteGroup(page->number, name, ranks);
  std::erase_if(pages_, [](const auto& known) { return known.expired(); });
  pages_.push_back(page);
  return page;
}

std::vector<std::shared_ptr<const LaneJournal::Page>> LaneJournal::OwnPages() {
  std::vector<std::shared_ptr<const Page>> pages;
  MutexLock lock(mutex_);
  for (const auto& known : pages_) {
    if (auto page = known.lock(); page != nullptr) pages.push_back(std::move(page));
  }
  return pages;
}

int64_t LaneJournal::Submitted(const Page& page, const LaneCall& call, uint64_t sequence,
                               TimePoint now) {
  FlightRecord record;
  record.submitted_ns = ToNanoseconds(now);
  record.process_set = page.number;
  record.root = call.root;
  record.op = static_cast<uint8_t>(call.op);
  record.dtype = static_cast<uint8_t>(call.dtype);
  record.reduce_op = static_cast<uint8_t>(call.reduce_op);
  record.dim_count = 1;
  record.dims[0] = record.element_count =
      call.count >= 0 ? call.count : BytesOf(call) / SizeOf(call.dtype);
  return recorder_->Add(record, "operation " + std::to_string(sequence));
}

void LaneJournal::Begun(const Page& page, int64_t record, const LaneCall& call, uint64_t sequence,
                        TimePoint now) {
  recorder_->Begun(record, static_cast<int64_t>(sequence), now);
  Note(
      EventPhase::kBegin, page.track, [&] { return UpperCase(OpKindName(call.op)); },
      [&] { return "operation " + std::to_string(sequence) + ", " + call.ToText(); });
}

void LaneJournal::Ended(Page& page, int64_t record, const LaneCall& call, StatusCode code,
                        TimePoint now) {
  recorder_->Ended(record, code, now);
  const int64_t bytes = BytesOf(call);
  page.counters.AddOperation(bytes);
  g_counters.AddOperation(bytes);
  Note(
      EventPhase::kEnd, page.track, [&] { return UpperCase(OpKindName(call.op)); },
      [] { return ""; });
}

int64_t LaneJournal::AwaitsMessage(const Page& page, const Message& message, TimePoint now) {
  FlightRecord record = RecordOf(message);
  record.process_set = page.number;
  record.submitted_ns = ToNanoseconds(now);
  return recorder_->Add(record, TagText(message.tag));
}

void LaneJournal::Received(Page& page, int64_t record, const Message& message, StatusCode code,
                           TimePoint now) {
  recorder_->Ended(record, code, now);
  if (code != StatusCode::kOk) return;
  page.counters.AddReceived(message.bytes);
  g_counters.AddReceived(message.bytes);
  Note(
      EventPhase::kInstant, page.track, [] { return "RECEIVED"; },
      [&] {
        return BytesText(message) + " from rank " + std::to_string(message.sender) + ", " +
               TagText(message.tag);
      });
}

void LaneJournal::Sent(Page& page, const Message& message, TimePoint now) {
  FlightRecord record = RecordOf(message);
  record.process_set = page.number;
  record.submitted_ns = record.begun_ns = record.ended_ns = ToNanoseconds(now);
  recorder_->Add(record, TagText(message.tag));
  page.counters.AddSent(message.bytes);
  g_counters.AddSent(message.bytes);
  Note(
      EventPhase::kInstant, page.track, [] { return "SENT"; },
      [&] {
        return BytesText(message) + " to rank " + std::to_string(message.receiver) + ", " +
               TagText(message.tag);
      });
}

void LaneJournal::Stalled(const std::string& text) const {
  MYDIST_LOG(kWarning) << text;
  if (dumper_ != nullptr) dumper_->Request(FlightOccasion::kStall, text);
}

void LaneJournal::Failed(const Status& status) {
  {
    MutexLock lock(mutex_);
    // What ends by an earlier error has its words; the first operation that does counts.
    const bool is_known = !last_failure_.ok() && last_failure_.message() == status.message();
    if (is_known && !last_failure_.failure().operation.empty()) return;
    last_failure_ = status;
  }
  if (dumper_ != nullptr) dumper_->Request(FlightOccasion::kFailure, status.message());
}

void LaneJournal::Note(EventPhase phase, std::string_view track, const Text& name,
                       const Text& args) {
  if (process::IsInitialized()) {
    const auto job = process::CurrentJob();
    if (!job.ok()) return;
    Engine& engine = (*job)->engine();
    if (engine.records_events()) engine.RecordEvent(phase, track, name(), args());
  } else if (!timeline_path_.empty()) {
    NoteInOwnFile({ToNanoseconds(Now()), 0, phase, std::string(track), name(), args()});
  }
}

void LaneJournal::NoteInOwnFile(TimelineEvent event) {
  MutexLock lock(mutex_);
  if (has_no_writer_) return;
  if (writer_ == nullptr) {
    auto opened = TraceWriter::OpenOfRank(PathOfRank(timeline_path_, site_.rank), site_.rank,
                                          site_.size, site_.host);
    if (!opened.ok()) {
      has_no_writer_ = true;
      MYDIST_LOG(kWarning) << "the process groups record no timeline: "
                           << opened.status().message();
      return;
    }
    writer_ = std::move(opened).value();
  }
  writer_->Append(site_.rank, {std::move(event)}, 0);
}

}  // namespace mydist
