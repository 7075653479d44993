// Store: the tables of one server, and what each worker has asked of them. It moves no bytes: a
// server, or a simulation, passes frames to its sessions and sends what they answer. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ps/frame.h"
#include "ps/payload.h"
#include "ps/piece.h"
#include "ps/table_spec.h"

namespace mydist::ps {

// A table as one server has it.
class MYDIST_EXPORT Table {
 public:
  explicit Table(TableSpec spec);

  const TableSpec& spec() const { return spec_; }
  // Null: there is none here, or it has no start values yet.
  std::shared_ptr<Piece> Find(uint32_t piece) MYDIST_EXCLUDES(mutex_);
  // kInvalidArgument for a piece that the table does not have, or other sizes. A piece that is
  // there stays as it is.
  Status Start(uint32_t piece, std::span<const uint8_t> values) MYDIST_EXCLUDES(mutex_);
  // For each piece of it.
  void Finish(int worker) MYDIST_EXCLUDES(mutex_);
  void Resume(int worker) MYDIST_EXCLUDES(mutex_);
  void Lose(int worker, const Status& why) MYDIST_EXCLUDES(mutex_);
  // Of the rule, those that change.
  Status SetOptions(const RuleSpec& changes) MYDIST_EXCLUDES(mutex_);
  // See Piece; of the first piece whose requests wait.
  Status WhyWaits(int worker) MYDIST_EXCLUDES(mutex_);
  // The worker needs it no more; whether no worker does.
  bool Remove(int worker) MYDIST_EXCLUDES(mutex_);

 private:
  std::vector<std::shared_ptr<Piece>> Pieces() MYDIST_EXCLUDES(mutex_);

  const TableSpec spec_;
  Mutex mutex_;
  RuleSpec rule_ MYDIST_GUARDED_BY(mutex_);  // As it is now.
  std::map<uint32_t, std::shared_ptr<Piece>> pieces_ MYDIST_GUARDED_BY(mutex_);
  std::vector<bool> removed_ MYDIST_GUARDED_BY(mutex_);
  Status lost_ MYDIST_GUARDED_BY(mutex_);  // For pieces that start later.
};

// The tables of a server by their numbers.
class MYDIST_EXPORT Store {
 public:
  // kInvalidArgument when there is none of that number.
  Result<std::shared_ptr<Table>> Find(uint32_t table) MYDIST_EXCLUDES(mutex_);
  // kMismatch when the number has another table.
  Status Declare(uint32_t table, const TableSpec& spec) MYDIST_EXCLUDES(mutex_);
  void Remove(uint32_t table, int worker) MYDIST_EXCLUDES(mutex_);
  // The rank works on none of its tables any more, and needs none.
  void Leave(int rank) MYDIST_EXCLUDES(mutex_);
  // The same without its will.
  void Lose(int rank, const Status& why) MYDIST_EXCLUDES(mutex_);
  // See Piece; with the table.
  Status WhyWaits(int rank) MYDIST_EXCLUDES(mutex_);

 private:
  struct WorkOn {
    uint32_t number;
    std::shared_ptr<Table> table;
    int worker;
  };
  // The tables of the rank, with its index in each.
  std::vector<WorkOn> TablesOf(int rank) MYDIST_EXCLUDES(mutex_);

  Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Table>> tables_ MYDIST_GUARDED_BY(mutex_);
};

// Session: one worker process at one server, over one connection after the other. What an earlier
// connection still brings when the next one is there counts no more: the worker sends it again.
class MYDIST_EXPORT Session : public std::enable_shared_from_this<Session> {
 public:
  // Copies or sends the payload before it returns, or moves from its owner, which may be none.
  // `frame` names the place in the window, if any; the payload may lie there already.
  using Send =
      std::function<void(const Frame& frame, std::span<const uint8_t> payload, Payload* owner)>;

  Session(Store* store, int rank) : store_(store), rank_(rank) {}

  // The worker is connected; what it asks for from now on is answered there. The number of the
  // connection.
  int64_t Connect(Send send) MYDIST_EXCLUDES(mutex_);
  // The connection is gone. What is answered meanwhile is sent when it is asked for again. Whether
  // the worker has no other one by now.
  bool Disconnect(int64_t connection) MYDIST_EXCLUDES(mutex_);
  // A request. One that came before is answered once more, and not done again.
  void Take(int64_t connection, const Frame& frame, Payload payload)
      MYDIST_EXCLUDES(order_, mutex_);
  // The payload of the request lies in the window of its connection no more.
  void NoteCopied(int64_t connection, uint64_t sequence) MYDIST_EXCLUDES(mutex_);

  // From now on its requests are answered with this error.
  void End(const Status& why) MYDIST_EXCLUDES(mutex_);

  bool has_said_goodbye() MYDIST_EXCLUDES(mutex_);
  // Whether this is the worker's last connection, open or not.
  bool IsLast(int64_t connection) MYDIST_EXCLUDES(mutex_);

 private:
  struct Entry {
    Frame request;
    int64_t connection = 0;  // Over which it came; its place is in the window of that one.
    bool is_done = false;
    Status status;
  };

  void Do(const Frame& frame, Payload payload);
  Status Manage(const Frame& frame, const Payload& payload);
  Status CheckWorker(const Table& table, uint32_t worker) const;
  // With what its requests wait for.
  void AnswerPing(uint64_t sequence) MYDIST_EXCLUDES(mutex_);
  // `words`: the payload of an answer that is neither parameters nor an error.
  void Reply(uint64_t sequence, const Answer& answer, std::vector<uint8_t> words = {})
      MYDIST_EXCLUDES(mutex_);
  // One that came before; whether it was.
  bool Repeat(int64_t connection, const Frame& frame) MYDIST_EXCLUDES(mutex_);

  Store* const store_;
  const int rank_;
  // Held while a request is done: threads of two connections would change the order of pushes.
  // Before the lock of a piece, which is before mutex_.
  Mutex order_;
  Mutex mutex_;
  int64_t connection_ MYDIST_GUARDED_BY(mutex_) = 0;  // The last one.
  Send send_ MYDIST_GUARDED_BY(mutex_);
  std::map<uint64_t, Entry> entries_ MYDIST_GUARDED_BY(mutex_);  // By sequence.
  bool has_said_goodbye_ MYDIST_GUARDED_BY(mutex_) = false;
  Status end_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
