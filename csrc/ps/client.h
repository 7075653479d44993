// Client: a worker's tables, on all servers of the job. Any thread. A caller that waits moves the
// bytes itself; a thread of the client's own moves them while callers compute.
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
#include "ps/holdings.h"
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

// One wait for an operation, which may be made of several calls of Wait.
struct Patience {
  TimePoint begin = Now();
  int explained = 0;  // How often the log has said what it waits for.
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
  // Its two steps are Open, and then SubmitToAll of kDeclare or kOpen with the spec; a dense table
  // that is created needs Submit of kStart as well.
  Status Declare(uint32_t table, const TableSpec& spec, int worker, bool creates,
                 std::span<const float> start);

  // Knows the table from now on. kInvalidArgument for a spec that is not allowed.
  Status Open(uint32_t table, const TableSpec& spec, int worker) MYDIST_EXCLUDES(mutex_);

  // A push, pull or push_pull of a dense table. `gradient` and `output`: its elements, row-major;
  // null where the kind has none. A push without a gradient only moves the clock. Both stay until
  // the operation is over.
  std::shared_ptr<Operation> Submit(FrameKind kind, uint32_t table, const float* gradient,
                                    float* output, int priority = 0);
  // The same of rows: `rows` are copied, gradients and output are rows.size() × width.
  std::shared_ptr<Operation> SubmitRows(FrameKind kind, uint32_t table,
                                        std::span<const int64_t> rows, const float* gradients,
                                        float* output, int priority = 0);
  // Finish, resume, remove, or other options of the rule, on all servers. A push to rows without
  // any gradient: it moves the clock alone.
  std::shared_ptr<Operation> SubmitToAll(FrameKind kind, uint32_t table,
                                         const std::vector<uint8_t>& payload = {});

  // What has been submitted goes on, although no caller waits for it. Else a thread may look after
  // it only 0.1 s later.
  void Attend() { io_->Attend(); }

  // Whether it is over by `deadline`. Meanwhile it says what the operation waits for, and ends it
  // after stall_shutdown.
  bool Wait(const std::shared_ptr<Operation>& operation, Patience& patience, TimePoint deadline);

  // Says goodbye to all servers, and waits a moment until they have heard it. Later calls fail. See
  // Lane.
  void Close(bool has_failed = false);

  TableStats StatsOf(uint32_t table) const MYDIST_EXCLUDES(mutex_);
  LaneStats stats();
  std::vector<ServerShare> SharesOf(uint32_t table) const MYDIST_EXCLUDES(mutex_);
  const std::vector<std::shared_ptr<Lane>>& lanes() const { return lanes_; }

 private:
  // The calls that are under way hold it: a lane may deliver an answer while the client ends.
  class OpenTable {
   public:
    OpenTable(TableSpec own, int index, std::vector<int> lane_of_piece, size_t lanes)
        : spec(std::move(own)),
          worker(index),
          places(std::move(lane_of_piece)),
          versions_(spec.is_dense() ? places.size() : lanes) {}

    const TableSpec spec;
    const int worker;               // Its index among the table's workers.
    const std::vector<int> places;  // Index of the lane, by piece.

    // Held while the parts of an operation join their lanes: two threads that push at once are in
    // the same order at each server. Before the locks of the lanes.
    Mutex order;

    void CountPush() MYDIST_EXCLUDES(mutex_);
    // Notes what an answer says of the version, and how stale a push was. `index`: of the piece,
    // or of the lane of rows.
    int64_t NoteVersion(size_t index, const Frame& answer, FrameKind kind) MYDIST_EXCLUDES(mutex_);
    TableStats stats() const MYDIST_EXCLUDES(mutex_);

   private:
    mutable Mutex mutex_;
    std::vector<uint64_t> versions_ MYDIST_GUARDED_BY(mutex_);  // Read last.
    TableStats stats_ MYDIST_GUARDED_BY(mutex_);
    double staleness_sum_ MYDIST_GUARDED_BY(mutex_) = 0;
    int64_t staleness_count_ MYDIST_GUARDED_BY(mutex_) = 0;
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
  std::shared_ptr<OpenTable> Find(uint32_t table) const MYDIST_EXCLUDES(mutex_);
  std::vector<int> Places(const TableSpec& spec) const;
  std::vector<int64_t> PiecesByLane(const OpenTable& table) const;
  // Null unless a timeline is recorded.
  std::shared_ptr<CallTrace> TraceOf(FrameKind kind, const TableSpec& spec, int64_t parts) const;
  // The positions of the rows of each lane. kInvalidArgument for a row that the table has not.
  Result<std::vector<std::vector<int64_t>>> ByLane(FrameKind kind, const TableSpec& spec,
                                                   std::span<const int64_t> rows) const;
  // Of the rows at these positions.
  static Part RowPart(const RowCall& call, size_t lane, std::span<const int64_t> where);
  // Of an operation on the table, by lane.
  void Send(OpenTable& table, std::vector<std::vector<Part>> parts);
  // Whether it is over by then. This thread moves the bytes meanwhile, unless another caller does.
  bool Await(Operation& operation, TimePoint deadline);
  void Explain(const std::shared_ptr<Operation>& operation, Duration waited);
  // Ends it, and all else that waits for the same servers.
  void GiveUp(const std::shared_ptr<Operation>& operation, Duration waited);

  const ClientOptions options_;
  const Ring ring_;
  std::vector<int> lane_of_server_;
  std::shared_ptr<Io> io_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  const std::shared_ptr<Holdings> holdings_ = std::make_shared<Holdings>();
  mutable Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<OpenTable>> tables_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
