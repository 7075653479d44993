#include "ps/client.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.h"
#include "ps/error_bytes.h"

namespace mydist::ps {
namespace {

constexpr Duration kAnswerTime = std::chrono::milliseconds(400);
constexpr Duration kGoodbyeTime = std::chrono::seconds(1);
constexpr int64_t kRowBytesInAPart = int64_t{4} << 20;

std::vector<int> NumbersOf(const std::vector<Address>& servers) {
  std::vector<int> numbers;
  for (const Address& server : servers) numbers.push_back(server.server);
  return numbers;
}

std::span<const uint8_t> BytesAt(const float* values, int64_t count) {
  return {reinterpret_cast<const uint8_t*>(values), static_cast<size_t>(count) * sizeof(float)};
}

template <typename T>
void Append(std::vector<uint8_t>& bytes, const T* values, size_t count) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(values);
  bytes.insert(bytes.end(), begin, begin + count * sizeof(T));
}

std::string TextOf(FrameKind kind, const TableSpec& spec) {
  return std::string(FrameKindName(kind)) + " of table '" + spec.name + "'";
}

size_t RowsInAPart(const TableSpec& spec) {
  return static_cast<size_t>(
      std::max<int64_t>(1, kRowBytesInAPart / (spec.width * static_cast<int64_t>(sizeof(float)))));
}

// The warning of this number, from 0, comes after so long.
Duration After(Duration first, int number) {
  for (int i = 0; i < number; ++i) first = Doubled(first);
  return first;
}

// What the requests to a server wait for, as an error about the one that is to blame.
Status AskWhy(Lane& lane) {
  const auto ping = std::make_shared<Operation>("ping", 1);
  Part part;
  part.frame = {.kind = FrameKind::kPing, .table = kNoTable};  // It waits behind none.
  part.priority = std::numeric_limits<int>::max();
  part.operation = ping;
  const auto answer = std::make_shared<Status>();
  part.deliver = [answer](std::span<const uint8_t> bytes, const Frame&) {
    *answer = DecodeError(static_cast<uint8_t>(StatusCode::kTimeout), bytes);
  };
  std::vector<Part> parts;
  parts.push_back(std::move(part));
  lane.Submit(std::move(parts));
  if (!ping->WaitUntil(Now() + kAnswerTime)) {
    ping->Fail(Status::Timeout("no answer"));
    const Introduction& server = lane.server();
    return Status::Timeout("It gives no answer: it is stopped or cannot be reached.")
        .About({.host = server.host, .pid = server.pid, .finding = kSilentFinding});
  }
  if (!ping->status().ok()) return ping->status();
  if (answer->message().empty()) return Status::Timeout("It answers and is busy.");
  return Status::Timeout("It answers; " + answer->message() + ".").About(answer->failure());
}

std::shared_ptr<Operation> Failed(const Status& why) {
  auto operation = std::make_shared<Operation>("parameter server", 1);
  operation->Fail(why);
  return operation;
}

}  // namespace

Client::Client(const ClientOptions& options)
    : options_(options), ring_(NumbersOf(options.servers)) {
  for (const Address& server : options.servers) {
    const auto number = static_cast<size_t>(server.server);
    if (lane_of_server_.size() <= number) lane_of_server_.resize(number + 1);
    lane_of_server_[number] = static_cast<int>(&server - options.servers.data());
  }
}

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  std::unique_ptr<Client> client(new Client(options));
  MYDIST_ASSIGN_OR_RETURN(client->io_, Io::Start(1, "mydist-client"));
  for (const Address& server : options.servers) {
    LaneOptions of_lane = options.lane;
    of_lane.holdings = [all = client->holdings_, lane = client->lanes_.size()] {
      return all->TextOf(lane);
    };
    MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Lane> lane, Lane::Open(client->io_, server, of_lane));
    client->lanes_.push_back(std::move(lane));
  }
  return client;
}

Client::~Client() { Close(); }

void Client::Close(bool has_failed) {
  Status error;
  if (has_failed) {
    // The others are to hear of a lost server rather than of a worker that lost it.
    error = Status::Aborted(WorkerText(options_.lane.connect.self) + " has failed; see its output")
                .About(FailureOf(options_.lane.connect.self));
    for (const std::shared_ptr<Lane>& lane : lanes_) {
      const Status lost = lane->failure();
      if (!lost.ok() && lost.code() != StatusCode::kAborted) error = lost;
    }
  }
  for (const std::shared_ptr<Lane>& lane : lanes_) lane->Close(error);
  if (io_ != nullptr) io_->Attend();
  const TimePoint deadline = Now() + kGoodbyeTime;
  for (const std::shared_ptr<Lane>& lane : lanes_) lane->AwaitClosed(deadline);
}

std::shared_ptr<Client::OpenTable> Client::Find(uint32_t table) const {
  MutexLock lock(mutex_);
  const auto found = tables_.find(table);
  return found == tables_.end() ? nullptr : found->second;
}

std::vector<int> Client::Places(const TableSpec& spec) const {
  std::vector<int> places;
  if (!spec.is_dense()) return places;
  for (const int server : ring_.Place(spec.name, spec.PieceCount())) {
    places.push_back(lane_of_server_[static_cast<size_t>(server)]);
  }
  return places;
}

std::vector<int64_t> Client::PiecesByLane(const OpenTable& table) const {
  if (!table.spec.is_dense()) return std::vector<int64_t>(lanes_.size(), 1);
  std::vector<int64_t> pieces(lanes_.size());
  for (const int lane : table.places) ++pieces[static_cast<size_t>(lane)];
  return pieces;
}

Status Client::Open(uint32_t number, const TableSpec& spec, int worker) {
  MYDIST_RETURN_IF_ERROR(CheckTableSpec(spec));
  const auto table = std::make_shared<OpenTable>(spec, worker, Places(spec), lanes_.size());
  {
    MutexLock lock(mutex_);
    tables_[number] = table;
  }
  holdings_->Open(number, spec.name, PiecesByLane(*table));
  return Status::Ok();
}

Status Client::Declare(uint32_t number, const TableSpec& spec, int worker, bool creates,
                       std::span<const float> start) {
  MYDIST_RETURN_IF_ERROR(Open(number, spec, worker));
  Patience patience;
  const auto declared =
      SubmitToAll(creates ? FrameKind::kDeclare : FrameKind::kOpen, number, EncodeTableSpec(spec));
  Wait(declared, patience, kNever);
  MYDIST_RETURN_IF_ERROR(declared->status());
  if (!creates || !spec.is_dense()) return Status::Ok();
  MYDIST_CHECK(static_cast<int64_t>(start.size()) == spec.elements);
  const auto started = Submit(FrameKind::kStart, number, start.data(), nullptr);
  Wait(started, patience, kNever);
  return started->status();
}

void Client::Send(OpenTable& table, std::vector<std::vector<Part>> parts) {
  MutexLock in_order(table.order);
  for (size_t lane = 0; lane < parts.size(); ++lane) {
    if (parts[lane].empty()) continue;
    const bool pushes = Pushes(parts[lane][0].frame.kind);
    if (pushes && table.spec.consistency == Consistency::kSync) {
      for (Part& part : parts[lane]) part.takes_turns = true;
    }
    lanes_[lane]->Submit(std::move(parts[lane]));
  }
}

int64_t Client::OpenTable::NoteVersion(size_t index, const Frame& answer, FrameKind kind) {
  MutexLock lock(mutex_);
  uint64_t& read = versions_[index];
  int64_t staleness = -1;
  if (Pushes(kind) && answer.version > read) {
    staleness = static_cast<int64_t>(answer.version - read) - 1;
    staleness_sum_ += static_cast<double>(staleness);
    ++staleness_count_;
    stats_.most_staleness = std::max(stats_.most_staleness, staleness);
  }
  if (Pulls(kind)) read = answer.version;
  return staleness;
}

std::shared_ptr<CallTrace> Client::TraceOf(FrameKind kind, const TableSpec& spec,
                                           int64_t parts) const {
  if (options_.on_span == nullptr || !options_.is_recording()) return nullptr;
  std::string name(FrameKindName(kind));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return std::make_shared<CallTrace>("table " + spec.name, name, ring_.servers(), parts,
                                     options_.on_span);
}

void Client::OpenTable::CountPush() {
  MutexLock lock(mutex_);
  ++stats_.pushes;
}

TableStats Client::OpenTable::stats() const {
  MutexLock lock(mutex_);
  TableStats stats = stats_;
  if (staleness_count_ > 0) {
    stats.mean_staleness = staleness_sum_ / static_cast<double>(staleness_count_);
  }
  return stats;
}

std::shared_ptr<Operation> Client::Submit(FrameKind kind, uint32_t number, const float* gradient,
                                          float* output, int priority) {
  const std::shared_ptr<OpenTable> table = Find(number);
  if (table == nullptr || !table->spec.is_dense()) {
    return Failed(Status::InvalidArgument("there is no dense table " + std::to_string(number)));
  }
  const TableSpec& spec = table->spec;
  const auto operation = std::make_shared<Operation>(TextOf(kind, spec), spec.PieceCount());
  const std::shared_ptr<CallTrace> trace = TraceOf(kind, spec, spec.PieceCount());
  std::vector<std::vector<Part>> parts(lanes_.size());
  for (int64_t piece = 0; piece < spec.PieceCount(); ++piece) {
    const auto index = static_cast<size_t>(piece);
    const int64_t begin = spec.PieceBegin(piece);
    const int64_t count = spec.PieceElements(piece);
    Part part;
    part.frame = {.kind = kind,
                  .table = number,
                  .piece = static_cast<uint32_t>(piece),
                  .worker = static_cast<uint32_t>(table->worker)};
    if (gradient != nullptr) part.payload = BytesAt(gradient + begin, count);
    if (Pulls(kind)) part.answer_bytes = static_cast<uint64_t>(count) * sizeof(float);
    const auto lane = static_cast<size_t>(table->places[index]);
    part.deliver = [table, index, kind, lane, trace,
                    to = output != nullptr && Pulls(kind) ? output + begin : nullptr](
                       std::span<const uint8_t> bytes, const Frame& answer) {
      if (to != nullptr) std::memcpy(to, bytes.data(), bytes.size());
      const int64_t staleness = table->NoteVersion(index, answer, kind);
      if (trace != nullptr) trace->Note(lane, answer, staleness);
    };
    part.priority = priority;
    part.operation = operation;
    parts[lane].push_back(std::move(part));
  }
  if (Pushes(kind)) table->CountPush();
  Send(*table, std::move(parts));
  return operation;
}

Result<std::vector<std::vector<int64_t>>> Client::ByLane(FrameKind kind, const TableSpec& spec,
                                                         std::span<const int64_t> rows) const {
  const uint64_t row_bytes = sizeof(int64_t) + static_cast<uint64_t>(spec.width) * sizeof(float);
  const uint64_t most = (kMaxPayloadBytes - sizeof(uint64_t)) / row_bytes;
  const std::string where = "table '" + spec.name + "': ";
  if (Pushes(kind) && rows.size() > most) {
    return Status::InvalidArgument(where + "got " + std::to_string(rows.size()) +
                                   " rows, a push may have at most " + std::to_string(most));
  }
  const uint64_t name = HashText(spec.name);
  std::vector<std::vector<int64_t>> positions(lanes_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= spec.rows) {
      return Status::InvalidArgument(where + "row " + std::to_string(rows[i]) + " at position " +
                                     std::to_string(i) + " is not one of its " +
                                     std::to_string(spec.rows) + " rows");
    }
    const auto server = static_cast<size_t>(ring_.PlaceRow(name, rows[i]));
    positions[static_cast<size_t>(lane_of_server_[server])].push_back(static_cast<int64_t>(i));
  }
  return positions;
}

Part Client::RowPart(const RowCall& call, size_t lane, std::span<const int64_t> where) {
  const auto width = static_cast<size_t>(call.table->spec.width);
  const uint64_t count = where.size();
  Part part;
  part.frame = {
      .kind = call.kind, .table = call.number, .worker = static_cast<uint32_t>(call.table->worker)};
  Append(part.own, &count, 1);
  for (const int64_t at : where) Append(part.own, &call.rows[static_cast<size_t>(at)], 1);
  for (size_t i = 0; call.gradients != nullptr && i < where.size(); ++i) {
    Append(part.own, call.gradients + static_cast<size_t>(where[i]) * width, width);
  }
  part.payload = part.own;
  if (Pulls(call.kind)) part.answer_bytes = count * width * sizeof(float);
  part.deliver = [table = call.table, kind = call.kind, trace = call.trace, lane, width,
                  output = Pulls(call.kind) ? call.output : nullptr,
                  to = std::vector<int64_t>(where.begin(), where.end())](
                     std::span<const uint8_t> bytes, const Frame& answer) {
    for (size_t i = 0; output != nullptr && i < to.size(); ++i) {
      std::memcpy(output + static_cast<size_t>(to[i]) * width,
                  bytes.data() + i * width * sizeof(float), width * sizeof(float));
    }
    const int64_t staleness = table->NoteVersion(lane, answer, kind);
    if (trace != nullptr) trace->Note(lane, answer, staleness);
  };
  part.priority = call.priority;
  return part;
}

std::shared_ptr<Operation> Client::SubmitRows(FrameKind kind, uint32_t number,
                                              std::span<const int64_t> rows, const float* gradients,
                                              float* output, int priority) {
  const std::shared_ptr<OpenTable> table = Find(number);
  if (table == nullptr || table->spec.is_dense()) {
    return Failed(
        Status::InvalidArgument("there is no table " + std::to_string(number) + " of rows"));
  }
  const TableSpec& spec = table->spec;
  const Result<std::vector<std::vector<int64_t>>> positions = ByLane(kind, spec, rows);
  if (!positions.ok()) return Failed(positions.status());
  // A push is one part, however large: it moves the clock of each server once. A pull goes to all
  // servers as well: how stale a gradient is depends on no row's place.
  const size_t step = Pushes(kind) ? std::max<size_t>(1, rows.size()) : RowsInAPart(spec);
  int64_t count = 0;
  for (const std::vector<int64_t>& of_lane : *positions) {
    count += std::max<int64_t>(1, static_cast<int64_t>((of_lane.size() + step - 1) / step));
  }
  const RowCall call{table,     kind,   number,   rows,
                     gradients, output, priority, TraceOf(kind, spec, count)};
  const auto operation = std::make_shared<Operation>(TextOf(kind, spec), count);
  std::vector<std::vector<Part>> parts(lanes_.size());
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::span<const int64_t> all = (*positions)[lane];
    for (size_t i = 0; i == 0 || i < all.size(); i += step) {
      parts[lane].push_back(RowPart(call, lane, all.subspan(i, std::min(step, all.size() - i))));
      parts[lane].back().operation = operation;
    }
  }
  if (Pushes(kind)) table->CountPush();
  Send(*table, std::move(parts));
  return operation;
}

std::shared_ptr<Operation> Client::SubmitToAll(FrameKind kind, uint32_t number,
                                               const std::vector<uint8_t>& payload) {
  const std::shared_ptr<OpenTable> table = Find(number);
  if (table == nullptr) {
    return Failed(Status::InvalidArgument("there is no table " + std::to_string(number)));
  }
  const auto operation =
      std::make_shared<Operation>(TextOf(kind, table->spec), static_cast<int64_t>(lanes_.size()));
  std::vector<std::vector<Part>> parts(lanes_.size());
  for (std::vector<Part>& of_lane : parts) {
    Part part;
    part.frame = {.kind = kind, .table = number, .worker = static_cast<uint32_t>(table->worker)};
    part.own = payload;
    part.payload = part.own;
    part.operation = operation;
    of_lane.push_back(std::move(part));
  }
  if (Pushes(kind)) table->CountPush();
  Send(*table, std::move(parts));
  if (kind == FrameKind::kRemove) {
    holdings_->Close(number);
    MutexLock lock(mutex_);
    tables_.erase(number);
  }
  return operation;
}

bool Client::Wait(const std::shared_ptr<Operation>& operation, Patience& patience,
                  TimePoint deadline) {
  const bool may_end = options_.stall_shutdown != Duration::max();
  const TimePoint end = may_end ? patience.begin + options_.stall_shutdown : kNever;
  while (true) {
    const bool warns = options_.stall_warning != Duration::max();
    const TimePoint warning =
        warns ? patience.begin + After(options_.stall_warning, patience.explained) : kNever;
    if (Await(*operation, std::min({deadline, warning, end}))) return true;
    const TimePoint now = Now();
    if (now >= end) {
      GiveUp(operation, now - patience.begin);
      return operation->WaitUntil(kPast);
    }
    if (now >= warning) {
      Explain(operation, now - patience.begin);
      // Not for those that passed while this process was stopped.
      while (patience.begin + After(options_.stall_warning, ++patience.explained) <= now) {
      }
    } else if (now >= deadline) {
      return false;
    }
  }
}

bool Client::Await(Operation& operation, TimePoint deadline) {
  const std::shared_ptr<Io> io = io_;
  const auto is_over = [&] { return operation.is_over(); };
  const auto is_idle = [&] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const std::shared_ptr<Lane>& lane) { return lane->IsIdle(); });
  };
  if (is_over() || io->Drive(is_over, is_idle, deadline)) return is_over();
  return operation.WaitUntil(deadline);
}

void Client::Explain(const std::shared_ptr<Operation>& operation, Duration waited) {
  for (const std::shared_ptr<Lane>& lane : lanes_) {
    if (!lane->Has(*operation)) continue;
    MYDIST_LOG(kWarning) << operation->text() << " has waited for " << lane->server_text()
                         << " for " << SecondsText(waited) << ". " << AskWhy(*lane).message();
  }
}

void Client::GiveUp(const std::shared_ptr<Operation>& operation, Duration waited) {
  for (const std::shared_ptr<Lane>& lane : lanes_) {
    if (!lane->Has(*operation)) continue;
    const Status why = AskWhy(*lane);
    lane->Fail(
        Status::Timeout("it has waited for " + lane->server_text() + " for " + SecondsText(waited) +
                        ", as long as MYDIST_STALL_SHUTDOWN_SECONDS allows. " + why.message())
            .About(why.failure())
            .About({.elapsed = ToSeconds(waited)}));
  }
  io_->Attend();
}

TableStats Client::StatsOf(uint32_t table) const {
  const std::shared_ptr<OpenTable> found = Find(table);
  return found == nullptr ? TableStats() : found->stats();
}

LaneStats Client::stats() {
  LaneStats sum;
  for (const std::shared_ptr<Lane>& lane : lanes_) {
    const LaneStats one = lane->stats();
    sum.sent_bytes += one.sent_bytes;
    sum.received_bytes += one.received_bytes;
    sum.repeated += one.repeated;
    sum.waited += one.waited;
  }
  return sum;
}

std::vector<ServerShare> Client::SharesOf(uint32_t number) const {
  std::vector<ServerShare> shares;
  for (const Address& server : options_.servers) shares.push_back({server.server, 0, 0});
  const std::shared_ptr<OpenTable> table = Find(number);
  if (table == nullptr) return shares;
  for (size_t piece = 0; piece < table->places.size(); ++piece) {
    ServerShare& share = shares[static_cast<size_t>(table->places[piece])];
    ++share.pieces;
    share.bytes += table->spec.PieceElements(static_cast<int64_t>(piece)) *
                   static_cast<int64_t>(sizeof(float));
  }
  return shares;
}

}  // namespace mydist::ps
