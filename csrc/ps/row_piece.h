// RowPiece: the rows of a table that one server holds; made when they are first touched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "ps/piece.h"

namespace mydist::ps {

// RowIndex: where a row is stored, by its number: an open hash table with linear probing. Pure.
class RowIndex {
 public:
  // The place of the row; the next one, which is taken then, for a new row.
  int64_t PlaceOf(int64_t row);
  int64_t size() const { return size_; }

 private:
  struct Entry {
    int64_t row = -1;
    int64_t place = 0;
  };
  size_t Find(int64_t row) const;
  void Grow();

  std::vector<Entry> entries_;  // A power of two; at most two thirds are taken.
  int64_t size_ = 0;
};

// What a payload about rows says: which, and their gradients, which a pull has none of.
// Bytes: their count u64, the numbers i64, the gradients f32, row after row.
struct RowsView {
  std::span<const int64_t> rows;
  std::span<const float> gradients;  // rows.size() × width, or empty.
};
// kInvalidArgument when the sizes differ or a number is not below spec.rows.
MYDIST_EXPORT Result<RowsView> ViewRows(std::span<const uint8_t> bytes, const TableSpec& spec);

// The start value of a row: the same on any server, whatever was touched before.
MYDIST_EXPORT void FillRow(const TableSpec& spec, int64_t row, std::span<float> values);

class MYDIST_EXPORT RowPiece final : public Piece {
 public:
  explicit RowPiece(const TableSpec& spec);

 protected:
  Status CheckGradient(const Payload& gradient) const override MYDIST_REQUIRES(mutex_);
  Status CheckRequest(const Payload& request) const override MYDIST_REQUIRES(mutex_);
  Payload RequestOf(const Payload& gradient) const override MYDIST_REQUIRES(mutex_);
  // A row that occurs several times gets the sum of its gradients.
  void Apply(std::span<const Payload* const> gradients, std::span<const std::span<float>> copies,
             const PushInfo& push) override MYDIST_REQUIRES(mutex_);
  std::span<const float> Read(int worker, const Payload& request) override MYDIST_REQUIRES(mutex_);

 private:
  float* RowAt(int64_t place) const {
    return chunks_[static_cast<size_t>(place / rows_in_a_chunk_)].get() +
           (place % rows_in_a_chunk_) * stride_;
  }
  std::span<float> Values(int64_t place) const {
    return {RowAt(place), static_cast<size_t>(spec_.width)};
  }
  std::span<float> State(int64_t place) const {
    return {RowAt(place) + spec_.width, static_cast<size_t>(stride_ - spec_.width)};
  }
  // Makes the row when it is new.
  int64_t Touch(int64_t row) MYDIST_REQUIRES(mutex_);

  const int64_t stride_;  // Floats of a row and its state.
  const int64_t rows_in_a_chunk_;
  RowIndex index_;
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<float> sum_;
  std::vector<float> answer_;
  std::vector<std::pair<int64_t, const float*>> touched_;
};

}  // namespace mydist::ps
