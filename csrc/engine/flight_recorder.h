// FlightRecorder: the last operations of this rank, for a user who asks why a job hangs or fails.
// Owned by an engine, or by what several lanes share, and by the FlightDumper. NextRun: the thread
// that drives the engine. Begun and Ended: one thread at a time for each record. All else: any
// thread, at any time.
// Nothing here waits, and only the first run of a process set allocates (decision 0021).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "world/process_set.h"

namespace mydist {

enum class FlightState : uint8_t { kWaiting, kRunning, kDone, kFailed };

// One operation on one tensor. Times are of CLOCK_MONOTONIC; 0: it has not come to that.
struct FlightRecord {
  static constexpr uint8_t kJoin = 255;  // In place of an OpKind.
  static constexpr size_t kNameBytes = 128;
  static constexpr size_t kMaxDims = 5;

  int64_t number = 0;  // Of the submissions of this rank, from 1.
  int64_t run = 0;     // Of what the process set has executed, from 1, equal on all its ranks; 0
                       // for what not all of them execute.
  int64_t submitted_ns = 0;
  int64_t begun_ns = 0;
  int64_t ended_ns = 0;
  int64_t element_count = 0;
  uint64_t name_hash = 0;  // Of a name that is cut.
  std::array<int64_t, kMaxDims> dims{};
  int32_t process_set = 0;
  int32_t root = -1;      // Of a point-to-point transfer: the sender.
  int32_t receiver = -1;  // Of such a transfer.
  int32_t device = kCpuDevice;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t reduce_op = 0;
  FlightState state = FlightState::kWaiting;
  uint8_t code = 0;  // StatusCode of what has ended.
  uint8_t dim_count = 0;
  uint16_t name_bytes = 0;  // Of the whole name.
  std::array<char, kNameBytes> name{};

  bool is_name_cut() const { return name_bytes > kNameBytes; }
  // The name. One that is cut is shown by its two ends, with an ellipsis in between.
  std::string NameText() const;
};
static_assert(std::is_trivially_copyable_v<FlightRecord> && sizeof(FlightRecord) == 31 * 8);

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 2048;
  // Of what has no record; the calls below do nothing then.
  static constexpr int64_t kNoRecord = -1;

  FlightRecorder();

  // The record of a tensor that has just been submitted.
  int64_t Submitted(const Request& request, TimePoint now);
  int64_t Joined(TimePoint now);
  // Any record; fills in its number and name.
  int64_t Add(FlightRecord& record, std::string_view name);
  // The next number in the order in which the set executes.
  int64_t NextRun(ProcessSetId set) { return ++runs_[set]; }
  void Begun(int64_t record, int64_t run, TimePoint now);
  void Ended(int64_t record, StatusCode code, TimePoint now);

  // The whole records of the ring, from old to new.
  std::vector<FlightRecord> Read() const;
  // What has ended well last, of the records of the ring.
  std::optional<FlightRecord> LastDone() const;
  int64_t submitted_count() const { return next_.load(std::memory_order_relaxed); }
  // Events that found their record being written.
  int64_t dropped_count() const { return dropped_.load(std::memory_order_relaxed); }

  // Which ranks are in a set.
  void NoteProcessSet(const ProcessSet& set) MYDIST_EXCLUDES(mutex_);
  std::map<ProcessSetId, std::vector<int>> ProcessSets() const MYDIST_EXCLUDES(mutex_);
  // The same of a process group of torch.distributed, which has a name.
  void NoteGroup(ProcessSetId number, const std::string& name, const std::vector<int>& ranks)
      MYDIST_EXCLUDES(mutex_);
  std::map<ProcessSetId, std::string> GroupNames() const MYDIST_EXCLUDES(mutex_);

 private:
  static constexpr size_t kWords = sizeof(FlightRecord) / sizeof(uint64_t);
  // The version: the record's number from bit 8 on, below it a revision, odd while it is written.
  struct alignas(64) Slot {
    std::atomic<uint64_t> version{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  Slot& SlotOf(int64_t record) const { return slots_[static_cast<size_t>(record) % kCapacity]; }
  // False: it is not there any more, or is being written.
  bool Claim(int64_t record, uint64_t* version);
  static bool Copy(const Slot& slot, FlightRecord* record);
  // The same, when another thread may be about to have written it.
  static bool CopyAtLast(const Slot& slot, FlightRecord* record);

  struct Unmap {
    void operator()(Slot* slots) const;
  };
  // Pages of their own. Memory of malloc would lie between what outlives the engine, so that a
  // process with many jobs, one after the other, would grow by some rings.
  using Ring = std::unique_ptr<Slot[], Unmap>;
  static Ring MapRing();

  const Ring slots_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> dropped_{0};
  std::map<ProcessSetId, int64_t> runs_;  // Of the thread that drives the engine.
  mutable Mutex mutex_;
  std::map<ProcessSetId, std::vector<int>> sets_ MYDIST_GUARDED_BY(mutex_);
  std::map<ProcessSetId, std::string> names_ MYDIST_GUARDED_BY(mutex_);  // Of groups.
};

}  // namespace mydist
