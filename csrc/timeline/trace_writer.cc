#include "timeline/trace_writer.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "timeline/trace_file.h"
#include "timeline/trace_format.h"

namespace mydist {
namespace {

struct Delivery {
  int rank = 0;
  int64_t clock_offset_ns = 0;
  std::vector<TimelineEvent> events;
};

int64_t MonotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Now().time_since_epoch()).count();
}

}  // namespace

// State that the engine and the writing thread share, and the file, which only that thread uses.
class TraceWriter::Core {
 public:
  Core(TraceFile file, int size)
      : size_(size),
        file_(std::move(file)),
        format_(size, MonotonicNanoseconds()),
        dropped_counts_(static_cast<size_t>(size)) {}

  Status WriteHeader(const std::vector<std::string>& hosts) {
    return file_.Append(format_.Header(hosts));
  }
  void Begin() {
    thread_ = std::thread(&Core::Run, this);
    pthread_setname_np(thread_.native_handle(), "mydist-timeline");
  }

  void Append(Delivery delivery) MYDIST_EXCLUDES(mutex_) {
    if (delivery.rank < 0 || delivery.rank >= size_) return;
    const size_t count = delivery.events.size();
    {
      MutexLock lock(mutex_);
      if (is_closing_ || waiting_event_count_ + count > kMaxWaitingEventCount) {
        CountDropped(delivery.rank, count);
        return;
      }
      waiting_event_count_ += count;
      waiting_.push_back(std::move(delivery));
    }
    arrived_.NotifyOne();
  }

  void SetDroppedCount(int rank, int64_t dropped_count) MYDIST_EXCLUDES(mutex_) {
    if (rank < 0 || rank >= size_) return;
    MutexLock lock(mutex_);
    dropped_counts_[static_cast<size_t>(rank)].by_rank = dropped_count;
  }

  void Flush() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!waiting_.empty() || is_writing_) written_.Wait(mutex_);
  }

  Status Close() MYDIST_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      is_closing_ = true;
    }
    arrived_.NotifyOne();
    if (thread_.joinable()) thread_.join();
    MutexLock lock(mutex_);
    return outcome_;
  }

  int64_t dropped_count() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return own_dropped_count_;
  }

 private:
  struct DropCount {
    int64_t by_rank = 0;  // As the rank itself says.
    int64_t here = 0;
  };

  void Run() {
    // Signals are for the training's threads. SIGXFSZ, sent to a thread that exceeds a file size
    // limit, would otherwise end the process.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (;;) {
      std::vector<Delivery> deliveries = TakeDeliveries();
      if (deliveries.empty()) break;
      for (Delivery& delivery : deliveries) Write(delivery);
      MutexLock lock(mutex_);
      is_writing_ = false;
      written_.NotifyAll();
    }
    Finish();
  }

  // Waits for deliveries; none means that the writer is being closed.
  std::vector<Delivery> TakeDeliveries() MYDIST_EXCLUDES(mutex_) {
    std::vector<Delivery> deliveries;
    MutexLock lock(mutex_);
    while (waiting_.empty() && !is_closing_) arrived_.Wait(mutex_);
    deliveries.swap(waiting_);
    is_writing_ = !deliveries.empty();
    return deliveries;
  }

  void Write(const Delivery& delivery) MYDIST_EXCLUDES(mutex_) {
    size_t lost_count = delivery.events.size();
    if (!has_failed_) {
      const auto& [records, records_needed] =
          format_.Format(delivery.rank, delivery.events, delivery.clock_offset_ns);
      const size_t old_count = file_.record_count();
      Note(file_.Append(records));
      const size_t written = file_.record_count() - old_count;
      lost_count = static_cast<size_t>(std::count_if(records_needed.begin(), records_needed.end(),
                                                     [&](size_t n) { return n > written; }));
    }
    MutexLock lock(mutex_);
    waiting_event_count_ -= delivery.events.size();
    CountDropped(delivery.rank, lost_count);
  }

  void Finish() MYDIST_EXCLUDES(mutex_) {
    std::vector<int64_t> dropped;
    {
      MutexLock lock(mutex_);
      for (const DropCount& count : dropped_counts_) dropped.push_back(count.by_rank + count.here);
    }
    // Tried after an error as well: there may be room left in the last page.
    Note(file_.Append(format_.Footer(dropped)));
    Note(file_.Close());
  }

  // The first error is logged and kept.
  void Note(const Status& status) MYDIST_EXCLUDES(mutex_) {
    if (status.ok() || has_failed_) return;
    has_failed_ = true;
    MYDIST_LOG(kWarning) << status.message()
                         << "; the timeline ends here, the job continues without it";
    MutexLock lock(mutex_);
    outcome_ = status;
  }

  void CountDropped(int rank, size_t count) MYDIST_REQUIRES(mutex_) {
    dropped_counts_[static_cast<size_t>(rank)].here += static_cast<int64_t>(count);
    own_dropped_count_ += static_cast<int64_t>(count);
  }

  const int size_;
  std::thread thread_;

  // The writing thread's alone once it runs.
  TraceFile file_;
  TraceFormat format_;
  bool has_failed_ = false;

  Mutex mutex_;
  CondVar arrived_;
  CondVar written_;
  std::vector<Delivery> waiting_ MYDIST_GUARDED_BY(mutex_);
  size_t waiting_event_count_ MYDIST_GUARDED_BY(mutex_) = 0;  // Including those being written.
  bool is_writing_ MYDIST_GUARDED_BY(mutex_) = false;
  bool is_closing_ MYDIST_GUARDED_BY(mutex_) = false;
  std::vector<DropCount> dropped_counts_ MYDIST_GUARDED_BY(mutex_);
  int64_t own_dropped_count_ MYDIST_GUARDED_BY(mutex_) = 0;
  Status outcome_ MYDIST_GUARDED_BY(mutex_);
};

Result<std::unique_ptr<TraceWriter>> TraceWriter::Open(const std::string& path, int size,
                                                       const std::vector<std::string>& hosts) {
  MYDIST_ASSIGN_OR_RETURN(TraceFile file, TraceFile::Open(path));
  auto core = std::make_unique<Core>(std::move(file), size);
  MYDIST_RETURN_IF_ERROR(core->WriteHeader(hosts));
  core->Begin();
  return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(core)));
}

TraceWriter::TraceWriter(std::unique_ptr<Core> core) : core_(std::move(core)) {}

TraceWriter::~TraceWriter() { [[maybe_unused]] const Status status = core_->Close(); }

void TraceWriter::Append(int rank, std::vector<TimelineEvent> events, int64_t clock_offset_ns) {
  core_->Append({rank, clock_offset_ns, std::move(events)});
}

void TraceWriter::SetDroppedCount(int rank, int64_t dropped_count) {
  core_->SetDroppedCount(rank, dropped_count);
}

void TraceWriter::Flush() { core_->Flush(); }

Status TraceWriter::Close() { return core_->Close(); }

int64_t TraceWriter::dropped_count() { return core_->dropped_count(); }

}  // namespace mydist
