#include "fakes/fake_nccl.h"

#include <gtest/gtest.h>

#include <cstring>

#include "gpu/current_device.h"

namespace mydist::testing {
namespace {

using nccl::Comm;
using nccl::ElementType;
using nccl::ncclComm;
using nccl::Outcome;
using nccl::ReductionKind;
using Kind = FakeNcclCall::Kind;
using State = ncclComm::State;

FakeNccl* current = nullptr;

// What this thread has called since GroupStart.
struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<Comm, FakeNcclCall>> calls;
};
thread_local OpenGroup group;

const char* OutcomeText(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSuccess:
      return "no error";
    case Outcome::kRemoteError:
      return "a remote process is gone";
    default:
      return "something failed";
  }
}

// NCCL would start the first GPU.
void ExpectCurrent() {
  EXPECT_NE(CurrentDevice::Get(), nullptr) << "no device is current for a call of NCCL";
}

}  // namespace

// NcclApi knows no context, hence `current`.
struct FakeNcclFunctions {
  static FakeNcclCall CallOf(Kind kind, const void* input, void* output, size_t count,
                             ElementType type, nccl::Stream stream) {
    FakeNcclCall call;
    call.kind = kind;
    call.input = input;
    call.output = output;
    call.count = count;
    call.reduction.type = type;
    call.stream = stream;
    return call;
  }

  static FakeNcclCall Reducing(FakeNcclCall call, ReductionKind op, Comm comm) {
    call.reduction.kind = op;
    if (static_cast<int>(op) <= static_cast<int>(ReductionKind::kAvg)) return call;
    MutexLock lock(current->mutex_);
    const auto made = comm->operators.find(static_cast<int>(op));
    EXPECT_NE(made, comm->operators.end()) << "no operator of this communicator";
    if (made == comm->operators.end()) return call;
    EXPECT_EQ(made->second.type, call.reduction.type) << "an operator for another type";
    call.reduction = made->second;
    return call;
  }

  static void Fill(nccl::NcclApi& api);
  static void FillCollectives(nccl::NcclApi& api);
};

void FakeNcclFunctions::Fill(nccl::NcclApi& api) {
  api.version = 23203;
  api.GetErrorString = OutcomeText;
  api.GetUniqueId = [](nccl::UniqueId* id) { return current->GetUniqueId(id); };
  api.CommInitRankConfig = [](Comm* comm, int size, nccl::UniqueId id, int rank,
                              nccl::CommConfig* config) {
    return current->Initialise(comm, size, id, rank, *config);
  };
  api.CommFinalize = [](Comm comm) { return current->Finalise(comm); };
  api.CommDestroy = [](Comm comm) { return current->Destroy(comm); };
  api.CommAbort = [](Comm comm) { return current->Abort(comm); };
  api.CommGetAsyncError = [](Comm comm, Outcome* progress) {
    *progress = current->Progress(comm);
    return Outcome::kSuccess;
  };
  api.GroupStart = [] {
    ++group.depth;
    return Outcome::kSuccess;
  };
  api.GroupEnd = [] { return current->EndGroup(); };
  api.RedOpCreatePreMulSum = [](ReductionKind* made, void* scalar, ElementType type,
                                nccl::ScalarResidence residence, Comm comm) {
    EXPECT_EQ(residence, nccl::ScalarResidence::kHostImmediate);
    return current->MakeOperator(comm, NumberAt(scalar, type), type, made);
  };
  api.RedOpDestroy = [](ReductionKind made, Comm comm) {
    return current->DestroyOperator(comm, made);
  };
  api.GetLastError = [](Comm) {
    MutexLock lock(current->mutex_);
    return current->words_.empty() ? "" : current->words_.back().c_str();
  };
}

void FakeNcclFunctions::FillCollectives(nccl::NcclApi& api) {
  api.AllReduce = [](const void* input, void* output, size_t count, ElementType type,
                     ReductionKind op, Comm comm, nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kAllReduce, input, output, count, type, stream);
    return current->Submit(comm, Reducing(call, op, comm));
  };
  api.Reduce = [](const void* input, void* output, size_t count, ElementType type, ReductionKind op,
                  int root, Comm comm, nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kReduce, input, output, count, type, stream);
    call.peer = root;
    return current->Submit(comm, Reducing(call, op, comm));
  };
  api.Broadcast = [](const void* input, void* output, size_t count, ElementType type, int root,
                     Comm comm, nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kBroadcast, input, output, count, type, stream);
    call.peer = root;
    return current->Submit(comm, call);
  };
  api.AllGather = [](const void* input, void* output, size_t count, ElementType type, Comm comm,
                     nccl::Stream stream) {
    return current->Submit(comm, CallOf(Kind::kAllGather, input, output, count, type, stream));
  };
  api.ReduceScatter = [](const void* input, void* output, size_t count, ElementType type,
                         ReductionKind op, Comm comm, nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kReduceScatter, input, output, count, type, stream);
    return current->Submit(comm, Reducing(call, op, comm));
  };
  api.Send = [](const void* input, size_t count, ElementType type, int peer, Comm comm,
                nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kSend, input, nullptr, count, type, stream);
    call.peer = peer;
    return current->Submit(comm, call);
  };
  api.Recv = [](void* output, size_t count, ElementType type, int peer, Comm comm,
                nccl::Stream stream) {
    FakeNcclCall call = CallOf(Kind::kReceive, nullptr, output, count, type, stream);
    call.peer = peer;
    return current->Submit(comm, call);
  };
}

FakeNccl::FakeNccl(Launch launch, Slowness slowness)
    : launch_(std::move(launch)), slowness_(slowness) {
  EXPECT_EQ(current, nullptr) << "one FakeNccl at a time";
  current = this;
  FakeNcclFunctions::Fill(api_);
  FakeNcclFunctions::FillCollectives(api_);
}

FakeNccl::~FakeNccl() {
  MutexLock lock(mutex_);
  EXPECT_EQ(running_, 0) << "work is still on a stream";
  for (const auto& comm : comms_) {
    EXPECT_EQ(comm->state, State::kEnded) << "rank " << comm->rank << " left a communicator";
  }
  current = nullptr;
}

void FakeNccl::FailAsync(int rank, Outcome outcome, std::string words) {
  MutexLock lock(mutex_);
  async_failures_[rank] = outcome;
  words_.push_back(std::move(words));
}

void FakeNccl::Break(int rank, Fault fault) {
  MutexLock lock(mutex_);
  faults_[rank] = fault;
}

bool FakeNccl::Has(Fault fault, int rank) {
  const auto found = faults_.find(rank);
  return found != faults_.end() && found->second == fault;
}

void FakeNccl::FailId() {
  MutexLock lock(mutex_);
  id_fails_ = true;
}

int FakeNccl::groups() {
  MutexLock lock(mutex_);
  return groups_;
}

int FakeNccl::aborts() {
  MutexLock lock(mutex_);
  return aborts_;
}

int FakeNccl::running() {
  MutexLock lock(mutex_);
  return running_;
}

std::vector<FakeNcclCall> FakeNccl::calls() {
  MutexLock lock(mutex_);
  return calls_;
}

void FakeNccl::AwaitRunning(int count) {
  MutexLock lock(mutex_);
  while (running_ < count) changed_.Wait(mutex_);
}

void FakeNccl::AwaitInitialising(int count) {
  MutexLock lock(mutex_);
  while (static_cast<int>(comms_.size()) < count) changed_.Wait(mutex_);
}

Outcome FakeNccl::GetUniqueId(nccl::UniqueId* id) {
  MutexLock lock(mutex_);
  if (id_fails_) return Outcome::kSystemError;
  *id = {};
  const std::string text = "id " + std::to_string(++ids_);
  text.copy(id->internal, sizeof(id->internal));
  return Outcome::kSuccess;
}

Outcome FakeNccl::Initialise(Comm* comm, int size, const nccl::UniqueId& id, int rank,
                             const nccl::CommConfig& config) {
  MutexLock lock(mutex_);
  ExpectCurrent();
  EXPECT_EQ(config.blocking, 0);
  EXPECT_EQ(config.magic, 0xcafebeefu);
  EXPECT_EQ(group.depth, 0) << "made within a group";
  if (Has(Fault::kInitFails, rank)) return Outcome::kSystemError;
  std::unique_ptr<FakeClique>& clique =
      cliques_[std::string(id.internal, strnlen(id.internal, sizeof(id.internal)))];
  if (clique == nullptr) clique = std::make_unique<FakeClique>(size);
  EXPECT_EQ(clique->size(), size) << "ranks disagree about their number";
  EXPECT_TRUE(clique->Join(rank)) << "rank " << rank << " comes twice";
  comms_.push_back(std::make_unique<ncclComm>());
  *comm = comms_.back().get();
  (*comm)->clique = clique.get();
  (*comm)->rank = rank;
  (*comm)->polls_left = slowness_.init_polls;
  changed_.NotifyAll();
  return Outcome::kInProgress;
}

Outcome FakeNccl::Progress(Comm comm) {
  {
    MutexLock lock(mutex_);
    const Outcome progress = ProgressOf(comm);
    if (progress != Outcome::kSuccess || comm->launching.empty()) return progress;
  }
  PutOnStream(comm);
  return Outcome::kSuccess;
}

Outcome FakeNccl::ProgressOf(Comm comm) {
  EXPECT_NE(comm->state, State::kEnded) << "rank " << comm->rank << " asks about what it ended";
  const auto failure = async_failures_.find(comm->rank);
  if (failure != async_failures_.end()) return failure->second;
  if (comm->state == State::kInitialising && !comm->clique->IsComplete()) {
    return Outcome::kInProgress;
  }
  if (comm->state == State::kFinalising && (comm->running > 0 || !comm->clique->AllLeave())) {
    return Outcome::kInProgress;
  }
  if (comm->polls_left > 0) {
    --comm->polls_left;
    return Outcome::kInProgress;
  }
  if (comm->state == State::kInitialising) comm->state = State::kReady;
  if (comm->state == State::kFinalising) comm->state = State::kFinalised;
  return Outcome::kSuccess;
}

bool FakeNccl::IsUsable(Comm comm, const char* what) {
  const bool usable = comm->state == State::kReady && comm->launching.empty();
  EXPECT_TRUE(usable) << "rank " << comm->rank << ": " << what
                      << " before the last call is over, or after the end";
  return usable;
}

Outcome FakeNccl::Finalise(Comm comm) {
  MutexLock lock(mutex_);
  ExpectCurrent();
  if (!IsUsable(comm, "CommFinalize")) return Outcome::kInvalidArgument;
  comm->state = State::kFinalising;
  comm->polls_left = slowness_.launch_polls;
  comm->clique->Leave(comm->rank);
  return Outcome::kInProgress;
}

Outcome FakeNccl::Destroy(Comm comm) {
  MutexLock lock(mutex_);
  ExpectCurrent();
  // NCCL would leave a group open in this thread.
  EXPECT_FALSE(async_failures_.contains(comm->rank)) << "rank " << comm->rank << " has failed";
  EXPECT_EQ(comm->state, State::kFinalised) << "rank " << comm->rank;
  EXPECT_TRUE(comm->operators.empty()) << "rank " << comm->rank << " left an operator";
  comm->state = State::kEnded;
  return Outcome::kSuccess;
}

// Blocks until the work that lies on a stream is through: NCCL waits for the stream, too.
Outcome FakeNccl::Abort(Comm comm) {
  MutexLock lock(mutex_);
  ExpectCurrent();
  EXPECT_NE(comm->state, State::kEnded) << "rank " << comm->rank << " ends it twice";
  EXPECT_TRUE(comm->operators.empty()) << "rank " << comm->rank << " left an operator";
  comm->state = State::kEnded;
  comm->is_aborted = true;
  comm->launching.clear();
  ++aborts_;
  changed_.NotifyAll();
  while (comm->running > 0) changed_.Wait(mutex_);
  return Outcome::kSuccess;
}

Outcome FakeNccl::Submit(Comm comm, const FakeNcclCall& call) {
  {
    MutexLock lock(mutex_);
    ExpectCurrent();
    if (!IsUsable(comm, "a collective")) return Outcome::kInvalidArgument;
    while (Has(Fault::kCallsHang, comm->rank) && !comm->is_aborted) changed_.Wait(mutex_);
    if (Has(Fault::kCallsFail, comm->rank) || comm->is_aborted) return Outcome::kSystemError;
    const int size = comm->clique->size();
    EXPECT_TRUE(call.IsLegal(comm->rank, size)) << "memory of rank " << comm->rank;
    EXPECT_TRUE(call.peer >= 0 && call.peer < size) << "peer or root " << call.peer;
    EXPECT_GT(call.count, 0u) << "nothing to do";
  }
  if (group.depth == 0) return Accept(comm, {call});
  group.calls.emplace_back(comm, call);
  return Outcome::kSuccess;
}

Outcome FakeNccl::EndGroup() {
  ExpectCurrent();
  EXPECT_GT(group.depth, 0) << "GroupEnd without GroupStart";
  if (--group.depth > 0) return Outcome::kSuccess;
  std::map<Comm, std::vector<FakeNcclCall>> by_comm;
  for (auto& [comm, call] : group.calls) by_comm[comm].push_back(call);
  group.calls.clear();
  Outcome outcome = Outcome::kSuccess;
  for (auto& [comm, calls] : by_comm) {
    const Outcome accepted = Accept(comm, std::move(calls));
    if (accepted != Outcome::kSuccess) outcome = accepted;
  }
  return outcome;
}

Outcome FakeNccl::Accept(Comm comm, std::vector<FakeNcclCall> calls) {
  {
    MutexLock lock(mutex_);
    for (FakeNcclCall& call : calls) {
      EXPECT_EQ(call.stream, calls[0].stream) << "a group on two streams";
      if (!call.IsTransfer()) call.position = comm->collectives++;
      calls_.push_back(call);
    }
    ++groups_;
    comm->launching = std::move(calls);
    comm->polls_left = slowness_.launch_polls;
    if (comm->polls_left > 0) return Outcome::kInProgress;
  }
  PutOnStream(comm);
  return Outcome::kSuccess;
}

void FakeNccl::PutOnStream(Comm comm) {
  FakeNcclWork work;
  nccl::Stream stream = nullptr;
  {
    MutexLock lock(mutex_);
    const int size = comm->clique->size();
    auto calls = std::make_shared<std::vector<FakeNcclCall>>(std::move(comm->launching));
    comm->launching.clear();
    for (const FakeNcclCall& call : *calls) {
      stream = call.stream;
      work.ranges.push_back({call.input, call.InputBytes(comm->rank, size), false});
      work.ranges.push_back({call.output, call.OutputBytes(comm->rank, size), true});
    }
    work.run = [this, comm, calls] { Run(comm, *calls); };
    ++comm->running;
  }
  launch_(stream, std::move(work));
}

void FakeNccl::Run(Comm comm, std::vector<FakeNcclCall>& calls) {
  MutexLock lock(mutex_);
  ++running_;
  if (!comm->is_aborted) {
    for (FakeNcclCall& call : calls) comm->clique->Post(comm->rank, &call);
  }
  changed_.NotifyAll();
  for (FakeNcclCall& call : calls) {
    while (!call.is_over && !comm->is_aborted) changed_.Wait(mutex_);
    comm->clique->Withdraw(comm->rank, &call);
  }
  --running_;
  --comm->running;
  changed_.NotifyAll();
}

Outcome FakeNccl::MakeOperator(Comm comm, double scalar, ElementType type, ReductionKind* made) {
  MutexLock lock(mutex_);
  if (!IsUsable(comm, "RedOpCreatePreMulSum")) return Outcome::kInvalidArgument;
  const int number = comm->next_operator++;
  comm->operators[number] = {.type = type, .kind = ReductionKind::kSum, .scalar = scalar};
  *made = static_cast<ReductionKind>(number);
  return Outcome::kSuccess;
}

Outcome FakeNccl::DestroyOperator(Comm comm, ReductionKind made) {
  MutexLock lock(mutex_);
  EXPECT_EQ(comm->operators.erase(static_cast<int>(made)), 1u)
      << "no operator of rank " << comm->rank;
  return Outcome::kSuccess;
}

}  // namespace mydist::testing
