#include "engine/timeline_relay.h"

#include <utility>

#include "base/log.h"

namespace mydist {

TimelineRelay::TimelineRelay(const Topology* topology, Timeline* timeline, Coordinator* coordinator)
    : topology_(*topology),
      timeline_(*timeline),
      coordinator_(*coordinator),
      offsets_(topology->rank == 0 ? static_cast<size_t>(topology->size) : 0) {}

bool TimelineRelay::Open(const std::string& path) {
  Close();
  auto writer = TraceWriter::Open(path, topology_.size, topology_.hosts);
  if (!writer.ok()) {
    MYDIST_LOG(kWarning) << "the timeline is not written: " << writer.status().message()
                         << ". Training continues.";
    return false;
  }
  writer_ = std::move(*writer);
  return true;
}

void TimelineRelay::Start(bool mark_cycles) { timeline_.Start(mark_cycles); }

void TimelineRelay::Stop() {
  timeline_.Stop();
  CarryOff();
}

void TimelineRelay::AwaitFile() {
  if (writer_ != nullptr) writer_->Flush();
}

TimePoint TimelineRelay::NextFlush() { return timeline_.NextFlush().value_or(kNever); }

void TimelineRelay::Flush(TimePoint now) {
  if (NextFlush() <= now) CarryOff();
  WriteIncoming();
}

void TimelineRelay::Finish() {
  CarryOff();
  if (topology_.rank == 0) return;
  // An empty block is the end: no other block is empty.
  EventBlock end{.sent_ns = ToNanoseconds(Now()), .dropped_count = timeline_.dropped_count()};
  if (!coordinator_.SendTimeline(EncodeEvents(end)).ok()) return;  // Rank 0 is gone already.
}

bool TimelineRelay::AllFinished() const {
  return writer_ == nullptr || finished_count_ >= topology_.size - 1;
}

void TimelineRelay::Close() {
  if (writer_ == nullptr) return;
  WriteIncoming();
  // The writer has logged its first error itself.
  [[maybe_unused]] const bool written = writer_->Close().ok();
  writer_.reset();
}

void TimelineRelay::CarryOff() {
  std::vector<TimelineEvent> events = timeline_.Drain();
  if (events.empty()) return;
  const int64_t dropped_count = timeline_.dropped_count();
  if (topology_.rank == 0) {
    if (writer_ == nullptr) return;
    writer_->Append(0, std::move(events), 0);
    writer_->SetDroppedCount(0, dropped_count);
    return;
  }
  const EventBlock block{ToNanoseconds(Now()), dropped_count, std::move(events)};
  if (Status sent = coordinator_.SendTimeline(EncodeEvents(block)); !sent.ok()) {
    MYDIST_LOG(kDebug) << "cannot send timeline events: " << sent.message();
  }
}

void TimelineRelay::WriteIncoming() {
  for (const IncomingMessage& message : coordinator_.TakeTimeline()) {
    auto block = DecodeEvents(message.payload);
    if (!block.ok()) {
      MYDIST_LOG(kWarning) << "the timeline lacks events of rank " << message.source << ": "
                           << block.status().message();
      continue;
    }
    if (block->events.empty()) ++finished_count_;
    if (writer_ == nullptr) continue;
    const auto rank = static_cast<size_t>(message.source);
    ClockOffset& offset = offsets_[rank];
    // Ranks of rank 0's host read the same clock.
    if (topology_.hosts[rank] != topology_.hosts[0]) {
      offset.Observe(block->sent_ns, ToNanoseconds(Now()));
    }
    writer_->SetDroppedCount(message.source, block->dropped_count);
    writer_->Append(message.source, std::move(block->events), offset.offset_ns());
  }
}

}  // namespace mydist
