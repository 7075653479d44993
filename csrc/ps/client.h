// Client: a worker's tables, on all servers of the job. Any thread; one thread of its own moves
// bytes while a caller computes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ps/call_trace.h"
#include "ps/lane.h"
#include "ps/operation.h"
#include "ps/ring.h"
#include "ps/table_spec.h"

namespace mydist::ps {

struct ClientOptions {
  std::vector<Address> servers;  // At least one; all workers name the same ones.
  LaneOptions lane;
  Duration stall_warning = Duration::max();   // After which a wait is explained in the log …
  Duration stall_shutdown = Duration::max();  // … and ends with an error.
  // Whether a timeline is recorded, and what takes its spans; null: none.
  std::function<bool()> is_recording = nullptr;
  OnSpan on_span = nullptr;
};

// What a table has cost this worker so far.
struct TableStats {
  int64_t pushes = 0;
  // Updates by others between a read of parameters and the push of a gradient of them, by piece.
  double mean_staleness = 0;
  int64_t most_staleness = 0;
};

// How many pieces, or for rows 0, and bytes of parameters a server holds of a table.
struct ServerShare {
  int server = 0;
  int64_t pieces = 0;
  int64_t bytes = 0;
};

class MYDIST_EXPORT Client {
 public:
  // Connects to all servers; blocks.
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  // Says goodbye to all of them.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // All workers call it with the same number and spec. The one with `start`, the parameters of a
  // dense table, comes first: with true it creates the table, the others open it. Blocks.
  Status Declare(uint32_t table, const TableSpec& spec, int worker, bool creates,
                 std::span<const float> start);

  // A push, pull or push_pull of a dense table. `gradient` and `output`: its elements, row-major;
  // null where the kind has none. A push without a gradient only moves the clock. Both stay until
  // the operation is over.
  std::shared_ptr<Operation> Submit(FrameKind kind, uint32_t table, const float* gradient,
                                    float* output, int priority = 0);
  // The same of rows: `rows` are copied, gradients and output are rows.size() × width.
  std::shared_ptr<Operation> SubmitRows(FrameKind kind, uint32_t table,
                                        std::span<const int64_t> rows, const float* gradients,
                                        float* output, int priority = 0);
  // Finish, resume, remove, or other options of the rule, on all servers.
  std::shared_ptr<Operation> SubmitToAll(FrameKind kind, uint32_t table,
                                         const std::vector<uint8_t>& payload = {});

  // Whether it is over by `deadline`. Meanwhile it says what the operation waits for, and ends it
  // after stall_shutdown; `begin`: when the wait began.
  bool Wait(const std::shared_ptr<Operation>& operation, TimePoint begin, TimePoint deadline);

  // Says goodbye to all servers. Later calls fail. See Lane.
  void Close(bool has_failed = false);

  TableStats StatsOf(uint32_t table) MYDIST_EXCLUDES(mutex_);
  LaneStats stats();
  std::vector<ServerShare> SharesOf(uint32_t table) MYDIST_EXCLUDES(mutex_);
  const std::vector<std::shared_ptr<Lane>>& lanes() const { return lanes_; }

 private:
  struct OpenTable {
    TableSpec spec;
    int worker = 0;
    std::vector<int> places;         // Index of the lane, by piece.
    std::vector<uint64_t> versions;  // Read last, by piece; of rows by lane.
    TableStats stats;
    double staleness_sum = 0;
    int64_t staleness_count = 0;
  };

  struct RowCall {
    std::shared_ptr<OpenTable> table;
    FrameKind kind;
    uint32_t number;
    std::span<const int64_t> rows;
    const float* gradients;
    float* output;
    int priority;
    std::shared_ptr<CallTrace> trace;
  };

  explicit Client(const ClientOptions& options);
  std::shared_ptr<OpenTable> Find(uint32_t table) MYDIST_EXCLUDES(mutex_);
  // Notes what an answer says of the version; how stale the gradient of a push was, else -1.
  int64_t NoteVersion(OpenTable& table, size_t index, const Frame& answer, FrameKind kind)
      MYDIST_EXCLUDES(mutex_);
  // Null unless a timeline is recorded.
  std::shared_ptr<CallTrace> TraceOf(FrameKind kind, const TableSpec& spec, int64_t parts) const;
  void CountPush(OpenTable& table) MYDIST_EXCLUDES(mutex_);
  // The positions of the rows of each lane. kInvalidArgument for a row that the table has not.
  Result<std::vector<std::vector<int64_t>>> ByLane(FrameKind kind, const TableSpec& spec,
                                                   std::span<const int64_t> rows) const;
  // Of the rows at these positions.
  Part RowPart(const RowCall& call, size_t lane, std::span<const int64_t> where);
  void Send(std::vector<std::vector<Part>> parts);
  void Explain(const std::shared_ptr<Operation>& operation, Duration waited);
  std::string AskWhy(Lane& lane);

  const ClientOptions options_;
  const Ring ring_;
  std::vector<int> lane_of_server_;
  std::shared_ptr<Io> io_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<OpenTable>> tables_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
