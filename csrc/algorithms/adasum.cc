#include "algorithms/adasum.h"

#include <type_traits>

#include "kernels/codec.h"

namespace mydist {

Adasum::Adasum(Transport* transport)
    : rank_(transport == nullptr ? 0 : transport->rank()),
      size_(transport == nullptr ? 1 : transport->size()),
      transfers_(transport) {}

Status Adasum::Allreduce(void* data, std::span<const int64_t> counts, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  Split(counts, element_bytes);
  const int64_t bytes = (slices_.back().offset + slices_.back().count) * element_bytes;
  if (bytes == 0) return Status::Ok();
  // The slices of one tensor lie in rank order as they are.
  if (counts.size() == 1) return ReducePacked(AsBytes(data), reduction);
  MYDIST_ASSIGN_OR_RETURN(uint8_t * packed, packed_.Reserve(bytes));
  VisitPieces([&](int64_t place, const Slice& piece) {
    CopyBytes(packed + place * element_bytes, AsBytes(data) + piece.offset * element_bytes,
              piece.count * element_bytes);
  });
  MYDIST_RETURN_IF_ERROR(ReducePacked(packed, reduction));
  VisitPieces([&](int64_t place, const Slice& piece) {
    CopyBytes(AsBytes(data) + piece.offset * element_bytes, packed + place * element_bytes,
              piece.count * element_bytes);
  });
  return Status::Ok();
}

Status Adasum::ReducePacked(uint8_t* packed, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const Slice own = OwnSlice();
  MYDIST_ASSIGN_OR_RETURN(uint8_t * rows, rows_.Reserve(size_ * own.count * element_bytes));
  MYDIST_RETURN_IF_ERROR(CollectRows(packed, rows, element_bytes));
  Status status;
  VisitElement(reduction.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_floating_point_v<typename Codec<T>::Wide>) {
      status = ReduceRows(reinterpret_cast<T*>(rows), reinterpret_cast<T*>(packed) + own.offset,
                          reduction);
    } else {
      MYDIST_CHECK(false);
    }
  });
  MYDIST_RETURN_IF_ERROR(status);
  return transfers_.HandOut(packed, slices_, element_bytes);
}

template <typename T>
Status Adasum::ReduceRows(T* rows, T* output, const Reduction& reduction) {
  using Wide = typename Codec<T>::Wide;
  const int64_t count = OwnSlice().count;
  Wide* vectors = nullptr;
  if constexpr (std::is_same_v<T, Wide>) {
    vectors = rows;
  } else {
    const int64_t bytes = size_ * count * static_cast<int64_t>(sizeof(Wide));
    MYDIST_ASSIGN_OR_RETURN(uint8_t * memory, wide_rows_.Reserve(bytes));
    vectors = reinterpret_cast<Wide*>(memory);
  }
  // Lands in `vectors` in any case: where nothing is to be done, they are the source.
  Codec<T>::Load(rows, vectors, size_ * count, reduction.prescale);
  MYDIST_RETURN_IF_ERROR(CombineRows(vectors));
  Codec<T>::Store(vectors, vectors, output, count, {reduction.postscale, reduction.divisor});
  return Status::Ok();
}

// Every tensor is cut by itself: how its dot products are summed must not depend on its neighbours.
void Adasum::Split(std::span<const int64_t> counts, int64_t element_bytes) {
  tensor_count_ = counts.size();
  pieces_.clear();
  slices_.clear();
  int64_t place = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t begin = place;
    int64_t tensor_offset = 0;
    for (const int64_t count : counts) {
      Slice piece = EvenSlice(count, element_bytes, size_, rank);
      place += piece.count;
      piece.offset += tensor_offset;
      tensor_offset += count;
      pieces_.push_back(piece);
    }
    slices_.push_back({begin, place - begin});
  }
}

// visitor(place in the packed vector, where it lies in the caller's data) for every piece.
template <typename Visitor>
void Adasum::VisitPieces(Visitor visitor) const {
  int64_t place = 0;
  for (const Slice& piece : pieces_) {
    visitor(place, piece);
    place += piece.count;
  }
}

Status Adasum::CollectRows(const uint8_t* packed, uint8_t* rows, int64_t element_bytes) {
  const int64_t row_bytes = OwnSlice().count * element_bytes;
  for (int peer = 0; peer < size_; ++peer) {
    const Slice theirs = slices_[static_cast<size_t>(peer)];
    const uint8_t* source = packed + theirs.offset * element_bytes;
    uint8_t* row = Advance(rows, peer * row_bytes);
    if (peer == rank_) {
      CopyBytes(row, source, row_bytes);
    } else {
      transfers_.Send(peer, source, theirs.count * element_bytes);
      transfers_.Receive(peer, row, row_bytes);
    }
  }
  return transfers_.Exchange();
}

// Ends with the result in the first row.
template <typename Wide>
Status Adasum::CombineRows(Wide* rows) {
  for (int64_t distance = 1; distance < size_; distance *= 2) {
    const int step = static_cast<int>(distance);
    MeasurePairs(rows, step);
    MYDIST_RETURN_IF_ERROR(SumDotProducts());
    CombinePairs(rows, step);
  }
  return Status::Ok();
}

// visitor(left rank, offset of the pair's first dot products) for every pair of the level.
template <typename Visitor>
void Adasum::VisitPairs(int distance, Visitor visitor) const {
  size_t offset = 0;
  for (int64_t left = 0; left + distance < size_; left += int64_t{2} * distance) {
    visitor(left, offset);
    offset += tensor_count_;
  }
}

// Fills our block of dots_ from our slice of the vectors.
template <typename Wide>
void Adasum::MeasurePairs(const Wide* rows, int distance) {
  dot_count_ = 0;
  VisitPairs(distance, [&](int64_t, size_t) { dot_count_ += tensor_count_; });
  dots_.resize(dot_count_ * static_cast<size_t>(size_));
  const std::span<const Slice> pieces = OwnPieces();
  const int64_t row_count = OwnSlice().count;
  VisitPairs(distance, [&](int64_t left, size_t offset) {
    DotProducts* dots = BlockOf(rank_) + offset;
    const Wide* vector = Advance(rows, left * row_count);
    for (const Slice& piece : pieces) {
      *dots++ = DotProductsOf(vector, Advance(vector, distance * row_count), piece.count);
      vector = Advance(vector, piece.count);
    }
  });
}

// Everybody gets the dot products of all slices and adds them in rank order, into the first block.
Status Adasum::SumDotProducts() {
  const auto bytes = static_cast<int64_t>(dot_count_ * sizeof(DotProducts));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transfers_.Send(peer, AsBytes(BlockOf(rank_)), bytes);
    transfers_.Receive(peer, AsBytes(BlockOf(peer)), bytes);
  }
  MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  for (int rank = 1; rank < size_; ++rank) {
    for (size_t i = 0; i < dot_count_; ++i) dots_[i] += BlockOf(rank)[i];
  }
  return Status::Ok();
}

// The left vector of each pair becomes their combination.
template <typename Wide>
void Adasum::CombinePairs(Wide* rows, int distance) {
  const std::span<const Slice> pieces = OwnPieces();
  const int64_t row_count = OwnSlice().count;
  VisitPairs(distance, [&](int64_t left, size_t offset) {
    const DotProducts* dots = dots_.data() + offset;
    Wide* vector = Advance(rows, left * row_count);
    for (const Slice& piece : pieces) {
      CombineVectors(vector, Advance(vector, distance * row_count), piece.count,
                     FactorsOf(*dots++));
      vector = Advance(vector, piece.count);
    }
  });
}

}  // namespace mydist
