#include "algorithms/shm/direct_collectives.h"

#include <algorithm>
#include <cstring>

#include "memory/shm/stream_copy.h"
#include "world/departure.h"

namespace mydist::shm {

DirectCollectives::DirectCollectives(const ShmTeam& team)
    : team_(team), places_(static_cast<size_t>(team.size)) {}

bool DirectCollectives::IsPossible() const { return memory().HasHeap() || memory().CanAttach(); }

Status DirectCollectives::PostPlaces(const PlaceMessage& mine) {
  places_[static_cast<size_t>(team_.rank)] = mine;
  has_ended_ = false;
  MYDIST_RETURN_IF_ERROR(team_.steps().Publish(team_.peers, &mine, sizeof mine));
  ReadPlaces();
  return Status::Ok();
}

template <typename PlaceFor>
Status DirectCollectives::PostPlacesEach(PlaceFor place_for) {
  int rank = 0;
  has_ended_ = false;
  MYDIST_RETURN_IF_ERROR(team_.steps().PublishEach(team_.peers, [&](int peer, uint8_t* room) {
    while (team_.member(rank) != peer) ++rank;
    const PlaceMessage message{.input = place_for(rank), .output = {}};
    std::memcpy(room, &message, sizeof message);
  }));
  ReadPlaces();
  return Status::Ok();
}

void DirectCollectives::ReadPlaces() {
  for (int rank = 0; rank < team_.size; ++rank) {
    if (rank == team_.rank) continue;
    std::memcpy(&places_[static_cast<size_t>(rank)], team_.steps().MessageOf(team_.member(rank)),
                sizeof(PlaceMessage));
  }
}

bool DirectCollectives::AnyIs(PlaceKind kind) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const PlaceMessage& places) { return places.input.kind == kind; });
}

Result<bool> DirectCollectives::Allreduce(uint8_t* data, int64_t count, const Reduction& reduction,
                                          bool may_copy) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  Place place = memory().PlaceOf(data, count * element_bytes, Attach::kWherePreferred);
  if (place.kind != PlaceKind::kHeap && may_copy) {
    MYDIST_ASSIGN_OR_RETURN(uint8_t * slot, team_.steps().Begin());
    StreamCopy(slot, data, count * element_bytes);
    place = {PlaceKind::kSlot, 0};
  }
  MYDIST_RETURN_IF_ERROR(PostPlaces({place, place}));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  if (AnyIs(PlaceKind::kSlot)) {
    MYDIST_RETURN_IF_ERROR(FoldFromAnywhere(data, count, reduction));
    return true;
  }
  const Slice own = EvenSlice(count, element_bytes, team_.size, team_.rank);
  uint8_t* output = data + own.offset * element_bytes;
  MYDIST_RETURN_IF_ERROR(
      FoldSlice({data, output, own.offset, own.count, &reduction}, {Others::kEverybody}));
  return End();
}

// Some are in slots, some in the heap: what is read in the heap must not be overwritten yet.
Status DirectCollectives::FoldFromAnywhere(uint8_t* data, int64_t count,
                                           const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  const bool is_read = PlacesOf(team_.rank).input.kind == PlaceKind::kHeap;
  uint8_t* target = data;
  if (is_read) {
    MYDIST_ASSIGN_OR_RETURN(target, bounce_buffer_.Reserve(bytes));
  }
  sources_.clear();
  for (int rank = 0; rank < team_.size; ++rank) {
    const Place& place = PlacesOf(rank).input;
    if (rank == team_.rank) {
      sources_.push_back(data);
    } else if (place.kind == PlaceKind::kSlot) {
      sources_.push_back(team_.SlotOf(rank));
    } else {
      MYDIST_ASSIGN_OR_RETURN(const uint8_t* view, memory().View(team_.member(rank), place, bytes));
      sources_.push_back(view);
    }
  }
  ReduceInRankOrder(sources_, target, count, reduction);
  team_.steps().Finish(team_.peers);
  if (!AnyIs(PlaceKind::kHeap)) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(End().status());
  CopyBytes(data, target, is_read ? bytes : 0);
  return Status::Ok();
}

int64_t DirectCollectives::ChunkCount(int64_t element_bytes) const {
  return (bounce_ == nullptr ? kViewChunkBytes : PrivateChunkBytes()) / element_bytes;
}

// Whole pages: the kernel maps each page once for every call.
int64_t DirectCollectives::PrivateChunkBytes() const {
  return std::max(kPageBytes, kPrivateBytes / team_.size / kPageBytes * kPageBytes);
}

Status DirectCollectives::FoldSlice(const Fold& fold, const Receivers& receivers) {
  const int64_t element_bytes = SizeOf(fold.reduction->dtype);
  bounce_ = nullptr;
  // Where there is no own output, the result may have to stay somewhere.
  if (AnyIs(PlaceKind::kPrivate) || fold.output == nullptr) {
    MYDIST_ASSIGN_OR_RETURN(bounce_, bounce_buffer_.Reserve(team_.size * PrivateChunkBytes()));
  }
  const int64_t limit = ChunkCount(element_bytes);
  for (int64_t begin = 0; begin < fold.count; begin += limit) {
    Fold chunk = fold;
    chunk.output = Advance(fold.output, begin * element_bytes);
    chunk.offset += begin;
    chunk.count = std::min(limit, fold.count - begin);
    MYDIST_RETURN_IF_ERROR(FoldChunk(chunk, receivers));
  }
  return Status::Ok();
}

Status DirectCollectives::FoldChunk(const Fold& fold, const Receivers& receivers) {
  const int64_t element_bytes = SizeOf(fold.reduction->dtype);
  sources_.clear();
  for (int rank = 0; rank < team_.size; ++rank) {
    MYDIST_ASSIGN_OR_RETURN(const uint8_t* source, SourceOf(rank, fold));
    sources_.push_back(source);
  }
  MYDIST_RETURN_IF_ERROR(CollectOutputs(fold, receivers));
  ReduceInRankOrder(sources_, outputs_, fold.count, *fold.reduction);
  for (int rank = 0; rank < team_.size; ++rank) {
    if (rank == team_.rank || !Receives(rank, receivers)) continue;
    const Place place = PlacesOf(rank).output.At(fold.offset * element_bytes);
    if (place.kind != PlaceKind::kPrivate) continue;
    MYDIST_RETURN_IF_ERROR(
        memory().Write(team_.member(rank), place, outputs_.front(), fold.count * element_bytes));
  }
  return Status::Ok();
}

Status DirectCollectives::CollectOutputs(const Fold& fold, const Receivers& receivers) {
  const int64_t element_bytes = SizeOf(fold.reduction->dtype);
  outputs_.clear();
  if (fold.output != nullptr) outputs_.push_back(fold.output);
  for (int rank = 0; rank < team_.size; ++rank) {
    if (rank == team_.rank || !Receives(rank, receivers)) continue;
    const Place place = PlacesOf(rank).output.At(fold.offset * element_bytes);
    if (place.kind == PlaceKind::kPrivate) continue;
    MYDIST_ASSIGN_OR_RETURN(uint8_t * view,
                            memory().View(team_.member(rank), place, fold.count * element_bytes));
    outputs_.push_back(view);
  }
  // From where it is written to those that cannot be seen.
  if (outputs_.empty()) outputs_.push_back(BounceOf(team_.rank));
  return Status::Ok();
}

Result<const uint8_t*> DirectCollectives::SourceOf(int rank, const Fold& fold) {
  const int64_t element_bytes = SizeOf(fold.reduction->dtype);
  const int64_t offset = fold.offset * element_bytes;
  const int64_t bytes = fold.count * element_bytes;
  if (rank == team_.rank) return fold.input + offset;
  const Place place = PlacesOf(rank).input.At(offset);
  if (place.kind == PlaceKind::kPrivate) {
    MYDIST_RETURN_IF_ERROR(memory().Read(team_.member(rank), place, BounceOf(rank), bytes));
    return static_cast<const uint8_t*>(BounceOf(rank));
  }
  MYDIST_ASSIGN_OR_RETURN(const uint8_t* view, memory().View(team_.member(rank), place, bytes));
  return view;
}

Result<bool> DirectCollectives::Reduce(const uint8_t* input, uint8_t* output, int64_t count,
                                       const Reduction& reduction, int root) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t bytes = count * element_bytes;
  PlaceMessage mine{.input = memory().PlaceOf(input, bytes), .output = {}};
  if (team_.rank == root) {
    mine.output = memory().PlaceOf(output, bytes);
    if (mine.output.kind == PlaceKind::kUnreachable) mine.input = {};
  }
  MYDIST_RETURN_IF_ERROR(PostPlaces(mine));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  const Slice own = EvenSlice(count, element_bytes, team_.size, team_.rank);
  uint8_t* target = team_.rank == root ? output + own.offset * element_bytes : nullptr;
  MYDIST_RETURN_IF_ERROR(
      FoldSlice({input, target, own.offset, own.count, &reduction}, {Others::kRoot, root}));
  return End();
}

Result<bool> DirectCollectives::Reducescatter(const uint8_t* input, uint8_t* output,
                                              std::span<const int64_t> counts,
                                              const Reduction& reduction) {
  const Place place =
      memory().PlaceOf(input, Total(counts) * SizeOf(reduction.dtype), Attach::kWherePreferred);
  MYDIST_RETURN_IF_ERROR(PostPlaces({place, {}}));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  const int64_t own_count = counts[static_cast<size_t>(team_.rank)];
  if (own_count > 0) {
    MYDIST_RETURN_IF_ERROR(
        FoldSlice({input, output, OffsetOf(counts, team_.rank), own_count, &reduction}, {}));
  }
  return End();
}

Result<bool> DirectCollectives::Allgather(const uint8_t* input, uint8_t* output,
                                          std::span<const int64_t> byte_counts) {
  const Place own = memory().PlaceOf(input, byte_counts[static_cast<size_t>(team_.rank)],
                                     Attach::kWherePreferred);
  MYDIST_RETURN_IF_ERROR(PostPlaces({own, {}}));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  for (int distance = 1; distance < team_.size; ++distance) {
    const int rank = (team_.rank + distance) % team_.size;
    MYDIST_RETURN_IF_ERROR(ReadFrom(rank, Advance(output, OffsetOf(byte_counts, rank)),
                                    byte_counts[static_cast<size_t>(rank)]));
  }
  return End();
}

Result<bool> DirectCollectives::Gather(const uint8_t* input, uint8_t* output,
                                       std::span<const int64_t> byte_counts, int root) {
  const Place own = memory().PlaceOf(input, byte_counts[static_cast<size_t>(team_.rank)]);
  MYDIST_RETURN_IF_ERROR(PostPlaces({own, {}}));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  for (int rank = 0; rank < team_.size && team_.rank == root; ++rank) {
    const int64_t bytes = byte_counts[static_cast<size_t>(rank)];
    uint8_t* target = Advance(output, OffsetOf(byte_counts, rank));
    if (rank == root) {
      CopyBytes(target, input, bytes);
    } else {
      MYDIST_RETURN_IF_ERROR(ReadFrom(rank, target, bytes));
    }
  }
  return End();
}

Result<bool> DirectCollectives::Scatter(const uint8_t* input, std::span<const int64_t> byte_counts,
                                        uint8_t* output, int root) {
  const int64_t own_bytes = byte_counts[static_cast<size_t>(team_.rank)];
  const bool is_root = team_.rank == root;
  const Place whole = is_root ? memory().PlaceOf(input, Total(byte_counts)) : Place{};
  places_[static_cast<size_t>(team_.rank)] = {whole, {}};
  MYDIST_RETURN_IF_ERROR(PostPlacesEach(
      [&](int rank) { return is_root ? whole.At(OffsetOf(byte_counts, rank)) : whole; }));
  if (PlacesOf(root).input.kind == PlaceKind::kUnreachable) return false;
  if (is_root) {
    CopyBytes(output, Advance(input, OffsetOf(byte_counts, root)), own_bytes);
  } else {
    MYDIST_RETURN_IF_ERROR(ReadFrom(root, output, own_bytes));
  }
  return End();
}

Result<bool> DirectCollectives::Broadcast(uint8_t* data, int64_t bytes, int root) {
  const Place own =
      team_.rank == root ? memory().PlaceOf(data, bytes, Attach::kWherePreferred) : Place{};
  MYDIST_RETURN_IF_ERROR(PostPlaces({own, {}}));
  if (PlacesOf(root).input.kind == PlaceKind::kUnreachable) return false;
  if (team_.rank != root) MYDIST_RETURN_IF_ERROR(ReadFrom(root, data, bytes));
  return End();
}

Result<bool> DirectCollectives::Alltoall(const uint8_t* input, std::span<const int64_t> send_bytes,
                                         uint8_t* output, std::span<const int64_t> receive_bytes) {
  const Place whole = memory().PlaceOf(input, Total(send_bytes));
  places_[static_cast<size_t>(team_.rank)] = {whole, {}};
  MYDIST_RETURN_IF_ERROR(
      PostPlacesEach([&](int rank) { return whole.At(OffsetOf(send_bytes, rank)); }));
  if (AnyIs(PlaceKind::kUnreachable)) return false;
  for (int distance = 0; distance < team_.size; ++distance) {
    const int rank = (team_.rank + distance) % team_.size;
    const int64_t bytes = receive_bytes[static_cast<size_t>(rank)];
    uint8_t* target = Advance(output, OffsetOf(receive_bytes, rank));
    if (rank == team_.rank) {
      CopyBytes(target, Advance(input, OffsetOf(send_bytes, rank)), bytes);
    } else {
      MYDIST_RETURN_IF_ERROR(ReadFrom(rank, target, bytes));
    }
  }
  return End();
}

Result<bool> DirectCollectives::Send(const uint8_t* data, int64_t bytes, int peer) {
  const int receiver = team_.member(peer);
  const PlaceMessage mine{.input = memory().PlaceOf(data, bytes), .output = {}};
  has_ended_ = false;
  MYDIST_RETURN_IF_ERROR(team_.steps().Publish({&receiver, 1}, &mine, sizeof mine));
  if (mine.input.kind == PlaceKind::kUnreachable) return false;
  return End({&receiver, 1});
}

Result<bool> DirectCollectives::Receive(uint8_t* data, int64_t bytes, int peer) {
  const int sender = team_.member(peer);
  has_ended_ = false;
  MYDIST_RETURN_IF_ERROR(team_.steps().Publish({&sender, 1}));
  PlaceMessage theirs;
  std::memcpy(&theirs, team_.steps().MessageOf(sender), sizeof theirs);
  if (theirs.input.kind == PlaceKind::kUnreachable) return false;
  MYDIST_RETURN_IF_ERROR(memory().Read(sender, theirs.input, data, bytes));
  return End({&sender, 1});
}

Status DirectCollectives::Settle(const Status& error, std::span<const int> peers) {
  team_.port->Leave(FarewellWords(error));  // They need not wait for us.
  team_.steps().AwaitQuiet(peers, has_ended_ ? 0 : 1, error);
  return error;
}

}  // namespace mydist::shm
