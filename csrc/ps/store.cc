#include "ps/store.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "ps/error_bytes.h"
#include "ps/row_piece.h"

namespace mydist::ps {
namespace {

uint32_t Microseconds(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(count, 0, UINT32_MAX));
}

// What two declarations of a table have different.
std::string Difference(const TableSpec& ours, const TableSpec& theirs) {
  const auto text = [](const TableSpec& spec) {
    const std::string size =
        spec.is_dense() ? std::to_string(spec.elements) + " elements"
                        : std::to_string(spec.rows) + " rows of " + std::to_string(spec.width);
    return "'" + spec.name + "': " + size + ", " + RuleText(spec.rule) + ", " +
           ConsistencyText(spec) + ", " + std::to_string(spec.workers()) + " workers";
  };
  return text(ours) + "; and " + text(theirs);
}

}  // namespace

Table::Table(TableSpec spec)
    : spec_(std::move(spec)), rule_(spec_.rule), removed_(static_cast<size_t>(spec_.workers())) {
  if (!spec_.is_dense()) pieces_[0] = std::make_shared<RowPiece>(spec_);
}

std::shared_ptr<Piece> Table::Find(uint32_t piece) {
  MutexLock lock(mutex_);
  const auto found = pieces_.find(piece);
  return found == pieces_.end() ? nullptr : found->second;
}

Status Table::Start(uint32_t piece, std::span<const uint8_t> values) {
  const std::string where = "table '" + spec_.name + "': piece " + std::to_string(piece);
  if (!spec_.is_dense() || piece >= spec_.PieceCount()) {
    return Status::InvalidArgument(where + " is none of its pieces");
  }
  const int64_t bytes = spec_.PieceElements(piece) * static_cast<int64_t>(sizeof(float));
  if (static_cast<int64_t>(values.size()) != bytes) {
    return Status::InvalidArgument(where + " starts with " + std::to_string(values.size()) +
                                   " bytes, expected " + std::to_string(bytes));
  }
  MutexLock lock(mutex_);
  if (pieces_.contains(piece)) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(lost_);
  pieces_[piece] = std::make_shared<DensePiece>(
      spec_,
      std::span(reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float)));
  return Status::Ok();
}

std::vector<std::shared_ptr<Piece>> Table::Pieces() {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Piece>> pieces;
  for (const auto& [number, piece] : pieces_) pieces.push_back(piece);
  return pieces;
}

void Table::Finish(int worker) {
  for (const std::shared_ptr<Piece>& piece : Pieces()) piece->Finish(worker);
}

void Table::Resume(int worker) {
  for (const std::shared_ptr<Piece>& piece : Pieces()) piece->Resume(worker);
}

void Table::Lose(int worker, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (lost_.ok()) lost_ = why;
  }
  for (const std::shared_ptr<Piece>& piece : Pieces()) piece->Lose(worker, why);
}

Status Table::SetOptions(const RuleSpec& changes) {
  RuleSpec rule;
  {
    MutexLock lock(mutex_);
    rule = rule_;
  }
  for (const auto& [name, value] : changes.options) {
    const auto is_it = [&name = name](const auto& option) { return option.first == name; };
    const auto found = std::find_if(rule.options.begin(), rule.options.end(), is_it);
    if (found == rule.options.end()) {
      rule.options.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
  MYDIST_RETURN_IF_ERROR(MakeRule(rule, spec_.workers()).status());
  for (const std::shared_ptr<Piece>& piece : Pieces()) {
    MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<UpdateRule> changed, MakeRule(rule, spec_.workers()));
    MYDIST_RETURN_IF_ERROR(piece->SetRule(std::move(changed)));
  }
  MutexLock lock(mutex_);
  rule_ = rule;
  return Status::Ok();
}

Status Table::WhyWaits(int worker) {
  for (const std::shared_ptr<Piece>& piece : Pieces()) {
    MYDIST_RETURN_IF_ERROR(piece->WhyWaits(worker));
  }
  return Status::Ok();
}

bool Table::Remove(int worker) {
  MutexLock lock(mutex_);
  removed_[static_cast<size_t>(worker)] = true;
  return std::find(removed_.begin(), removed_.end(), false) == removed_.end();
}

Result<std::shared_ptr<Table>> Store::Find(uint32_t table) {
  MutexLock lock(mutex_);
  const auto found = tables_.find(table);
  if (found != tables_.end()) return found->second;
  return Status::InvalidArgument("the server has no table " + std::to_string(table));
}

Status Store::Declare(uint32_t table, const TableSpec& spec) {
  MutexLock lock(mutex_);
  const auto [found, is_new] = tables_.try_emplace(table, nullptr);
  if (is_new) {
    found->second = std::make_shared<Table>(spec);
    return Status::Ok();
  }
  const TableSpec& known = found->second->spec();
  if (known == spec) return Status::Ok();
  return Status::Mismatch("two workers declare table " + std::to_string(table) +
                          " differently: " + Difference(known, spec));
}

void Store::Remove(uint32_t table, int worker) {
  MutexLock lock(mutex_);
  const auto found = tables_.find(table);
  if (found != tables_.end() && found->second->Remove(worker)) tables_.erase(found);
}

std::vector<Store::WorkOn> Store::TablesOf(int rank) {
  MutexLock lock(mutex_);
  std::vector<WorkOn> tables;
  for (const auto& [number, table] : tables_) {
    const std::vector<int>& ranks = table->spec().ranks;
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end() || *found != rank) continue;
    tables.push_back({number, table, static_cast<int>(found - ranks.begin())});
  }
  return tables;
}

void Store::Leave(int rank) {
  for (const WorkOn& work : TablesOf(rank)) {
    work.table->Finish(work.worker);
    Remove(work.number, work.worker);
  }
}

void Store::Lose(int rank, const Status& why) {
  for (const WorkOn& work : TablesOf(rank)) {
    work.table->Lose(work.worker, why);
    Remove(work.number, work.worker);
  }
}

Status Store::WhyWaits(int rank) {
  for (const WorkOn& work : TablesOf(rank)) {
    const Status why = work.table->WhyWaits(work.worker);
    if (!why.ok()) return why.WithContext("table '" + work.table->spec().name + "'");
  }
  return Status::Ok();
}

int64_t Session::Connect(Send send) {
  MutexLock lock(mutex_);
  send_ = std::move(send);
  return ++connection_;
}

bool Session::Disconnect(int64_t connection) {
  MutexLock lock(mutex_);
  if (connection != connection_) return false;
  send_ = nullptr;
  return true;
}

void Session::End(const Status& why) {
  MutexLock lock(mutex_);
  end_ = why;
}

bool Session::IsLast(int64_t connection) {
  MutexLock lock(mutex_);
  return connection == connection_;
}

bool Session::has_said_goodbye() {
  MutexLock lock(mutex_);
  return has_said_goodbye_;
}

void Session::NoteCopied(int64_t connection, uint64_t sequence) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(sequence);
  if (found == entries_.end() || found->second.is_done) return;
  if (found->second.connection != connection) return;
  found->second.request.is_in_window = false;
  if (send_ != nullptr) send_({.kind = FrameKind::kTaken, .sequence = sequence}, {}, nullptr);
}

bool Session::Repeat(int64_t connection, const Frame& frame) {
  Entry known;
  {
    MutexLock lock(mutex_);
    entries_.erase(entries_.begin(), entries_.lower_bound(frame.version));
    const auto [found, is_new] = entries_.try_emplace(frame.sequence, Entry{frame, connection});
    if (is_new) return false;
    found->second.request = frame;
    found->second.connection = connection;
    if (!found->second.is_done) return true;  // Its answer goes to the new connection.
    known = found->second;
  }
  if (Pulls(frame.kind) && known.status.ok()) return false;
  if (frame.kind == FrameKind::kPing && known.status.ok()) {
    AnswerPing(frame.sequence);
  } else {
    Reply(frame.sequence, {known.status});
  }
  return true;
}

void Session::Take(int64_t connection, const Frame& frame, Payload payload) {
  MutexLock in_order(order_);
  if (!IsLast(connection)) return;
  if (frame.kind == FrameKind::kGoodbye) {
    {
      MutexLock lock(mutex_);
      has_said_goodbye_ = true;
    }
    return store_->Leave(rank_);
  }
  if (Repeat(connection, frame)) return;
  try {
    Do(frame, std::move(payload));
  } catch (const std::bad_alloc&) {
    Reply(frame.sequence, {Status::Internal("the server has no memory left for this request; give "
                                            "it more, or start more servers")});
  }
  // What waits for other workers holds up no other request: its room is free again.
  if (frame.kind == FrameKind::kPull || !frame.is_in_window) NoteCopied(connection, frame.sequence);
}

Status Session::CheckWorker(const Table& table, uint32_t worker) const {
  const std::vector<int>& ranks = table.spec().ranks;
  if (worker < ranks.size() && ranks[worker] == rank_) return Status::Ok();
  return Status::InvalidArgument("rank " + std::to_string(rank_) + " is not worker " +
                                 std::to_string(worker) + " of table '" + table.spec().name + "'");
}

void Session::Do(const Frame& frame, Payload payload) {
  const uint64_t sequence = frame.sequence;
  const auto reply = [self = shared_from_this(), sequence](const Answer& answer) {
    self->Reply(sequence, answer);
  };
  Status end;
  bool has_pushed = false;  // By the same request over an earlier connection.
  {
    MutexLock lock(mutex_);
    end = end_;
    const auto found = entries_.find(sequence);
    has_pushed = found != entries_.end() && found->second.is_done;
  }
  if (!end.ok()) return reply({end});
  if (frame.kind == FrameKind::kPing) return AnswerPing(sequence);
  const bool pushes = Pushes(frame.kind);
  if (!pushes && !Pulls(frame.kind)) return reply({Manage(frame, payload)});
  const Result<std::shared_ptr<Table>> table = store_->Find(frame.table);
  if (!table.ok()) return reply({table.status()});
  if (const Status known = CheckWorker(**table, frame.worker); !known.ok()) return reply({known});
  const std::shared_ptr<Piece> piece = (*table)->Find(frame.piece);
  if (piece == nullptr) {
    return reply({Status::InvalidArgument("table '" + (*table)->spec().name + "': piece " +
                                          std::to_string(frame.piece) + " is not on this server")});
  }
  const auto worker = static_cast<int>(frame.worker);
  if (pushes && !has_pushed) {
    return piece->Push(worker, std::move(payload), Pulls(frame.kind), reply);
  }
  if (pushes) payload = (*table)->spec().is_dense() ? Payload() : std::move(payload);
  piece->Pull(worker, std::move(payload), reply);
}

Status Session::Manage(const Frame& frame, const Payload& payload) {
  if (frame.kind == FrameKind::kDeclare || frame.kind == FrameKind::kOpen) {
    MYDIST_ASSIGN_OR_RETURN(const TableSpec spec, DecodeTableSpec(payload.bytes()));
    if (frame.kind == FrameKind::kDeclare) return store_->Declare(frame.table, spec);
    MYDIST_RETURN_IF_ERROR(store_->Find(frame.table).status());
    return store_->Declare(frame.table, spec);
  }
  MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<Table> table, store_->Find(frame.table));
  MYDIST_RETURN_IF_ERROR(CheckWorker(*table, frame.worker));
  const auto worker = static_cast<int>(frame.worker);
  switch (frame.kind) {
    case FrameKind::kStart:
      return table->Start(frame.piece, payload.bytes());
    case FrameKind::kFinish:
      table->Finish(worker);
      return Status::Ok();
    case FrameKind::kResume:
      table->Resume(worker);
      return Status::Ok();
    case FrameKind::kRemove:
      table->Finish(worker);
      store_->Remove(frame.table, worker);
      return Status::Ok();
    case FrameKind::kOptions: {
      ByteReader reader(payload.bytes(), "options of a rule");
      const RuleSpec rule = DecodeRuleSpec(reader);
      MYDIST_RETURN_IF_ERROR(reader.Finish());
      return table->SetOptions(rule);
    }
    default:
      return Status::Internal("a server cannot do " + std::string(FrameKindName(frame.kind)));
  }
}

void Session::AnswerPing(uint64_t sequence) {
  Reply(sequence, {}, EncodeError(store_->WhyWaits(rank_)));
}

void Session::Reply(uint64_t sequence, const Answer& answer, std::vector<uint8_t> words) {
  if (!answer.status.ok()) words = EncodeError(answer.status);
  MutexLock lock(mutex_);
  const auto found = entries_.find(sequence);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.is_done = true;
  entry.status = answer.status;
  // Else it comes again, over the last one.
  if (send_ == nullptr || entry.connection != connection_) return;
  Frame frame{.kind = FrameKind::kAnswer,
              .code = static_cast<uint8_t>(answer.status.code()),
              .table = entry.request.table,
              .piece = Microseconds(answer.waited),
              .worker = entry.request.worker,
              .epoch = Microseconds(answer.applied),
              .sequence = sequence,
              .version = static_cast<uint64_t>(answer.updates),
              .clock = static_cast<uint64_t>(answer.lowest_clock)};
  std::span<const uint8_t> payload = words;
  if (words.empty()) {
    payload = {reinterpret_cast<const uint8_t*>(answer.parameters.data()),
               answer.parameters.size_bytes()};
    frame.is_in_window = entry.request.is_in_window && !payload.empty();
    frame.place = entry.request.place;
  }
  frame.payload_bytes = payload.size();
  send_(frame, payload, answer.owner);
}

}  // namespace mydist::ps
