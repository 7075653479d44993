#include "timeline/trace_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels refuse it.
#endif

namespace mydist {
namespace {

Status Unusable(const std::string& path, const std::string& cause) {
  return Status::InvalidArgument("cannot write the timeline to '" + path + "': " + cause +
                                 "; expected a file that this user can create or overwrite");
}

Status Unusable(const std::string& path, int error) {
  if (error == ELOOP) return Unusable(path, "it is a symbolic link, which is not followed");
  return Unusable(path,
                  std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")");
}

// Whether the open file may be emptied and written to; makes it private.
Status CheckOwnFile(int descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return Unusable(path, errno);
  if (!S_ISREG(info.st_mode)) return Unusable(path, "it is not a regular file");
  // Some file systems know no modes; then it is enough that the file is ours.
  if (fchmod(descriptor, 0600) != 0 && info.st_uid != geteuid()) {
    return Unusable(path, "it belongs to user " + std::to_string(info.st_uid));
  }
  // Some file systems know no locks; only a lock that is held counts.
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Unusable(path, "another job is writing to it");
  }
  return Status::Ok();
}

}  // namespace

TraceFile::TraceFile(int descriptor, std::string path)
    : descriptor_(descriptor), path_(std::move(path)), buffer_(std::make_unique<Page>()) {}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      buffer_(std::move(other.buffer_)),
      page_start_(other.page_start_),
      bracket_(other.bracket_),
      end_(other.end_),
      window_start_(other.window_start_),
      window_(std::move(other.window_)),
      pending_(std::move(other.pending_)),
      pending_count_(other.pending_count_),
      record_count_(other.record_count_) {}

TraceFile::~TraceFile() {
  if (descriptor_ < 0) return;
  flock(descriptor_, LOCK_UN);
  ::close(descriptor_);
}

Result<TraceFile> TraceFile::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos) return Unusable(path, "the path contains a NUL byte");
  // O_NONBLOCK: a FIFO must not hold us up. Readable as well, because its pages get mapped.
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
  if (descriptor < 0) return Unusable(path, errno);
  TraceFile file(descriptor, path);
  MYDIST_RETURN_IF_ERROR(CheckOwnFile(descriptor, path));
  MYDIST_RETURN_IF_ERROR(file.Initialize());
  return file;
}

Status TraceFile::Initialize() {
  if (ftruncate(descriptor_, 0) != 0) return Unusable(path_, errno);
  buffer_->bytes.fill(' ');
  buffer_->bytes[0] = '[';
  buffer_->bytes[1] = ']';
  const ssize_t written = ::pwrite(descriptor_, buffer_->bytes.data(), kPageBytes, 0);
  if (written != static_cast<ssize_t>(kPageBytes)) {
    const int error = written < 0 ? errno : ENOSPC;
    return Unusable(path_, error);
  }
  bracket_ = 1;
  end_ = static_cast<int64_t>(kPageBytes);
  return Status::Ok();
}

Status TraceFile::Append(const TraceRecords& records) {
  pending_.clear();
  pending_count_ = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const std::string_view record = records[i];
    MYDIST_CHECK(record.size() <= kMaxRecordBytes);
    const auto needed_bytes = [&] { return bracket_ + pending_.size() + 2 + record.size() + 1; };
    if (needed_bytes() > kPageBytes) {
      MYDIST_RETURN_IF_ERROR(Commit(/*fill_page=*/true));
      MYDIST_RETURN_IF_ERROR(StartNextPage());
      MYDIST_CHECK(needed_bytes() <= kPageBytes);
    }
    pending_ += record_count_ + pending_count_ == 0 ? "\n" : ",\n";
    pending_ += record;
    ++pending_count_;
  }
  return pending_.empty() ? Status::Ok() : Commit(/*fill_page=*/false);
}

// Writes what is pending and the bracket: right behind it, or in the last place of the page.
Status TraceFile::Commit(bool fill_page) {
  if (fill_page) pending_.resize(kPageBytes - 1 - bracket_, ' ');
  const size_t bracket = bracket_ + pending_.size();
  pending_ += ']';
  if (Status status = WriteInPage(pending_, page_start_ + static_cast<int64_t>(bracket_));
      !status.ok()) {
    // Whatever part of it got there: spaces over it, then the bracket to where it was.
    const std::string undo = "]" + std::string(pending_.size() - 1, ' ');
    [[maybe_unused]] const Status undone =
        WriteInPage(undo, page_start_ + static_cast<int64_t>(bracket_));
    return status;
  }
  bracket_ = bracket;
  record_count_ += pending_count_;
  pending_.clear();
  pending_count_ = 0;
  return Status::Ok();
}

// From a page that ends in the bracket to one that starts with it.
Status TraceFile::StartNextPage() {
  const int64_t next = page_start_ + static_cast<int64_t>(kPageBytes);
  // The page is there before it is needed, so a full disk cannot hit us in the middle of a change.
  if (next >= end_) MYDIST_RETURN_IF_ERROR(MakePage(next));
  if (!MoveBracketInMemory(next - 1) && ::pwrite(descriptor_, " ]", 2, next - 1) != 2) {
    const int error = errno;
    [[maybe_unused]] const ssize_t undone = ::pwrite(descriptor_, "] ", 2, next - 1);
    return Failure("write to", error);
  }
  page_start_ = next;
  bracket_ = 0;
  return Status::Ok();
}

// As many as there is room for, up to kPagesAtOnce: spaces may be written in any pieces.
Status TraceFile::MakePage(int64_t start) {
  const std::string spaces(kPagesAtOnce * kPageBytes, ' ');
  ssize_t written = 0;
  do {
    written = ::pwrite(descriptor_, spaces.data(), spaces.size(), start);
  } while (written < 0 && errno == EINTR);
  const int error = written < 0 ? errno : ENOSPC;
  const int64_t pages = std::max<ssize_t>(written, 0) / static_cast<ssize_t>(kPageBytes);
  if (pages > 0) {
    end_ = start + pages * static_cast<int64_t>(kPageBytes);
    return Status::Ok();
  }
  // A part of the spaces may stay; the file is valid with them as well.
  [[maybe_unused]] const int ignored = ftruncate(descriptor_, start);
  return Failure("write to", error);
}

void UnmapPages::operator()(char* memory) const { munmap(memory, length); }

// So that the two bytes at `place` and what follows lie in the window.
bool TraceFile::MapFrom(int64_t place) {
  window_start_ = place - place % sysconf(_SC_PAGESIZE);
  const auto length = static_cast<size_t>(end_ - window_start_);
  void* const memory =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, window_start_);
  window_ = {memory == MAP_FAILED ? nullptr : static_cast<char*>(memory), UnmapPages{length}};
  return window_ != nullptr;
}

// False, with nothing changed, when the file's memory cannot be mapped.
bool TraceFile::MoveBracketInMemory(int64_t place) {
  struct __attribute__((packed)) Pair {
    uint16_t bits;
  };
  const auto lies_within = [&] {
    return window_ != nullptr &&
           place + 2 <= window_start_ + static_cast<int64_t>(window_.get_deleter().length);
  };
  if (!lies_within() && !MapFrom(place)) return false;
  char* const bracket = window_.get() + (place - window_start_);
  const auto into_page = static_cast<size_t>(place % sysconf(_SC_PAGESIZE));
  // Pages that are not writable, or were cut off, are an error here; at the store they would be a
  // SIGBUS.
  if (madvise(bracket - into_page, into_page + 2, MADV_POPULATE_WRITE) != 0) return false;
  Pair moved{};
  std::memcpy(&moved, " ]", sizeof(moved));
  // Volatile and of two bytes: one store instruction, done as a whole or not at all.
  reinterpret_cast<volatile Pair*>(bracket)->bits = moved.bits;
  return true;
}

Status TraceFile::WriteInPage(std::string_view text, int64_t offset) {
  MYDIST_CHECK(offset % static_cast<int64_t>(kPageBytes) + static_cast<int64_t>(text.size()) <=
               static_cast<int64_t>(kPageBytes));
  text.copy(buffer_->bytes.data(), text.size());
  ssize_t written = 0;
  do {
    written = ::pwrite(descriptor_, buffer_->bytes.data(), text.size(), offset);
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return Status::Ok();
  return Failure("write to", written < 0 ? errno : ENOSPC);
}

Status TraceFile::Close() {
  if (descriptor_ < 0) return Status::Ok();
  window_.reset();
  const int64_t used_bytes = page_start_ + static_cast<int64_t>(bracket_) + 1;
  // Spaces at the end do no harm, so it does not matter whether they can be cut off.
  [[maybe_unused]] const int ignored = ftruncate(descriptor_, used_bytes);
  // A forked child may hold the file open for long; the lock must not stay with it.
  flock(descriptor_, LOCK_UN);
  // Network file systems report write errors here.
  if (::close(std::exchange(descriptor_, -1)) != 0) return Failure("close", errno);
  return Status::Ok();
}

Status TraceFile::Failure(const char* action, int error) const {
  return Status::Internal(std::string("cannot ") + action + " the timeline '" + path_ +
                          "': " + std::strerror(error) + " (errno " + std::to_string(error) + ")");
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::Open(const std::string& path, int size,
                                                       const std::vector<std::string>& hosts) {
  MYDIST_ASSIGN_OR_RETURN(TraceFile file, TraceFile::Open(path));
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::move(file), size, ToNanoseconds(Now())));
  const TraceRecords header = writer->format_.Header(hosts);
  return Start(std::move(writer), header);
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::OpenOfRank(const std::string& path, int rank,
                                                             int size, const std::string& host) {
  MYDIST_ASSIGN_OR_RETURN(TraceFile file, TraceFile::Open(path));
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::move(file), size, /*start_ns=*/0));
  const TraceRecords header = TraceFormat::HeaderOf(rank, host);
  return Start(std::move(writer), header);
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::Start(std::unique_ptr<TraceWriter> writer,
                                                        const TraceRecords& header) {
  MYDIST_RETURN_IF_ERROR(writer->file_.Append(header));
  // SIGXFSZ, sent to a thread that exceeds a file size limit, would otherwise end the process.
  MYDIST_ASSIGN_OR_RETURN(writer->thread_,
                          StartThread("mydist-timeline", "that writes the timeline",
                                      [it = writer.get()] { it->Run(); }));
  return writer;
}

TraceWriter::TraceWriter(TraceFile file, int size, int64_t start_ns)
    : size_(size),
      file_(std::move(file)),
      format_(size, start_ns),
      dropped_counts_(static_cast<size_t>(size)) {}

TraceWriter::~TraceWriter() { [[maybe_unused]] const Status status = Close(); }

void TraceWriter::Append(int rank, std::vector<TimelineEvent> events, int64_t clock_offset_ns) {
  if (rank < 0 || rank >= size_) return;
  const size_t count = events.size();
  {
    MutexLock lock(mutex_);
    if (is_closing_ || waiting_event_count_ + count > kMaxWaitingEventCount) {
      CountDropped(rank, count);
      return;
    }
    waiting_event_count_ += count;
    waiting_.push_back({rank, clock_offset_ns, std::move(events)});
  }
  arrived_.NotifyOne();
}

void TraceWriter::SetDroppedCount(int rank, int64_t dropped_count) {
  if (rank < 0 || rank >= size_) return;
  MutexLock lock(mutex_);
  dropped_counts_[static_cast<size_t>(rank)].by_rank = dropped_count;
}

void TraceWriter::Flush() {
  MutexLock lock(mutex_);
  while (!waiting_.empty() || is_writing_) written_.Wait(mutex_);
}

Status TraceWriter::Close() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  arrived_.NotifyOne();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  return outcome_;
}

int64_t TraceWriter::dropped_count() {
  MutexLock lock(mutex_);
  int64_t total = 0;
  for (const DropCount& count : dropped_counts_) total += count.here;
  return total;
}

void TraceWriter::Run() {
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

std::vector<TraceWriter::Delivery> TraceWriter::TakeDeliveries() {
  std::vector<Delivery> deliveries;
  MutexLock lock(mutex_);
  while (waiting_.empty() && !is_closing_) arrived_.Wait(mutex_);
  deliveries.swap(waiting_);
  is_writing_ = !deliveries.empty();
  return deliveries;
}

void TraceWriter::Write(const Delivery& delivery) {
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

void TraceWriter::Finish() {
  std::vector<int64_t> dropped;
  {
    MutexLock lock(mutex_);
    for (const DropCount& count : dropped_counts_) dropped.push_back(count.by_rank + count.here);
  }
  // Tried after an error as well: there may be room left in the last page.
  Note(file_.Append(format_.Footer(dropped)));
  Note(file_.Close());
}

void TraceWriter::Note(const Status& status) {
  if (status.ok() || has_failed_) return;
  has_failed_ = true;
  MYDIST_LOG(kWarning) << status.message()
                       << "; the timeline ends here, the job continues without it";
  MutexLock lock(mutex_);
  outcome_ = status;
}

void TraceWriter::CountDropped(int rank, size_t count) {
  dropped_counts_[static_cast<size_t>(rank)].here += static_cast<int64_t>(count);
}

}  // namespace mydist
