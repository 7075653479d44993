#include "ps/row_piece.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>

#include "ps/frame.h"
#include "ps/ring.h"

namespace mydist::ps {
namespace {

constexpr size_t kFirstEntries = 1024;
constexpr int64_t kCountBytes = 8;
constexpr int64_t kChunkFloats = int64_t{1} << 18;  // 1 MiB.

// From 0 up to, but not including, 1.
double Fraction(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

int64_t StrideOf(const TableSpec& spec) {
  const Result<std::unique_ptr<UpdateRule>> rule = MakeRule(spec.rule, spec.workers());
  MYDIST_CHECK(rule.ok());
  return spec.width + (*rule)->StateFloats(spec.width);
}

}  // namespace

size_t RowIndex::Find(int64_t row) const {
  const size_t mask = entries_.size() - 1;
  size_t at = HashNumbers(0, static_cast<uint64_t>(row)) & mask;
  while (entries_[at].row != row && entries_[at].row >= 0) at = (at + 1) & mask;
  return at;
}

void RowIndex::Grow() {
  std::vector<Entry> before(std::max(kFirstEntries, 2 * entries_.size()));
  before.swap(entries_);
  for (const Entry& entry : before) {
    if (entry.row >= 0) entries_[Find(entry.row)] = entry;
  }
}

int64_t RowIndex::PlaceOf(int64_t row) {
  if (3 * (static_cast<size_t>(size_) + 1) > 2 * entries_.size()) Grow();
  Entry& entry = entries_[Find(row)];
  if (entry.row < 0) entry = {row, size_++};
  return entry.place;
}

Result<RowsView> ViewRows(std::span<const uint8_t> bytes, const TableSpec& spec) {
  uint64_t count = 0;
  if (bytes.size() >= kCountBytes) std::memcpy(&count, bytes.data(), kCountBytes);
  const uint64_t most = bytes.size() / sizeof(int64_t);
  const std::string where = "table '" + spec.name + "': ";
  if (bytes.size() < kCountBytes || count > most) {
    return Status::InvalidArgument(where + "a request of " + std::to_string(bytes.size()) +
                                   " bytes cannot name " + std::to_string(count) + " rows");
  }
  const uint64_t head = kCountBytes + count * sizeof(int64_t);
  const uint64_t gradients = count * static_cast<uint64_t>(spec.width) * sizeof(float);
  if (bytes.size() != head && bytes.size() != head + gradients) {
    return Status::InvalidArgument(where + std::to_string(count) + " rows came with " +
                                   std::to_string(bytes.size() - head) +
                                   " bytes of gradients, expected " + std::to_string(gradients));
  }
  if (gradients > kMaxPayloadBytes) {
    return Status::InvalidArgument(where + "a request of " + std::to_string(count) +
                                   " rows is larger than one message may be");
  }
  RowsView view{{reinterpret_cast<const int64_t*>(bytes.data() + kCountBytes), count}, {}};
  if (bytes.size() != head) {
    view.gradients = {reinterpret_cast<const float*>(bytes.data() + head),
                      count * static_cast<size_t>(spec.width)};
  }
  for (const int64_t row : view.rows) {
    if (row < 0 || row >= spec.rows) {
      return Status::InvalidArgument(where + "row " + std::to_string(row) + " is not one of its " +
                                     std::to_string(spec.rows) + " rows");
    }
  }
  return view;
}

void FillRow(const TableSpec& spec, int64_t row, std::span<float> values) {
  const double scale = spec.init.scale;
  const uint64_t key =
      HashNumbers(HashText(spec.name) ^ spec.init.seed, static_cast<uint64_t>(row));
  for (size_t i = 0; i < values.size(); ++i) {
    const double first = Fraction(HashNumbers(key, 2 * i));
    double value = 0;
    if (spec.init.kind == RowInit::Kind::kUniform) value = scale * (2 * first - 1);
    if (spec.init.kind == RowInit::Kind::kNormal) {  // Box and Muller 1958.
      const double second = Fraction(HashNumbers(key, 2 * i + 1));
      value = scale * std::sqrt(-2 * std::log(1 - first)) * std::cos(2 * std::numbers::pi * second);
    }
    values[i] = static_cast<float>(value);
  }
}

RowPiece::RowPiece(const TableSpec& spec)
    : Piece(spec),
      stride_(StrideOf(spec)),
      rows_in_a_chunk_(std::clamp<int64_t>(kChunkFloats / stride_, 1, 1024)),
      sum_(static_cast<size_t>(spec.width)) {}

Status RowPiece::CheckGradient(const Payload& gradient) const {
  const Result<RowsView> view = ViewRows(gradient.bytes(), spec_);
  if (!view.ok()) return view.status();
  if (view->rows.empty() || !view->gradients.empty()) return Status::Ok();
  return Status::InvalidArgument("table '" + spec_.name + "': a push names rows without gradients");
}

Status RowPiece::CheckRequest(const Payload& request) const {
  return ViewRows(request.bytes(), spec_).status();
}

Payload RowPiece::RequestOf(const Payload& gradient) const {
  if (gradient.bytes().empty()) return {};
  // As in Apply.
  const Result<RowsView> view = ViewRows(gradient.bytes(), spec_);
  if (!view.ok()) return {};
  const auto end =
      gradient.bytes().begin() + kCountBytes + static_cast<std::ptrdiff_t>(view->rows.size_bytes());
  return Payload(std::vector<uint8_t>(gradient.bytes().begin(), end));
}

int64_t RowPiece::Touch(int64_t row) {
  const int64_t before = index_.size();
  const int64_t place = index_.PlaceOf(row);
  if (index_.size() == before) return place;
  if (place % rows_in_a_chunk_ == 0) {
    chunks_.push_back(std::make_unique<float[]>(static_cast<size_t>(rows_in_a_chunk_ * stride_)));
  }
  FillRow(spec_, row, Values(place));
  rule_->Begin(Values(place), State(place));
  return place;
}

void RowPiece::Apply(std::span<const Payload* const> gradients, std::span<const std::span<float>>,
                     const PushInfo& push) {
  touched_.clear();
  for (const Payload* const gradient : gradients) {
    // It has been checked, but a worker that is at fault may have written over it since.
    const Result<RowsView> view = ViewRows(gradient->bytes(), spec_);
    for (size_t i = 0; view.ok() && i < view->rows.size(); ++i) {
      touched_.emplace_back(Touch(view->rows[i]),
                            view->gradients.data() + i * static_cast<size_t>(spec_.width));
    }
  }
  // Stable, so that the gradients of a row are added in the order of the workers.
  std::stable_sort(touched_.begin(), touched_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto divisor = static_cast<float>(gradients.size());
  for (size_t i = 0; i < touched_.size();) {
    const int64_t place = touched_[i].first;
    std::span<const float> gradient(touched_[i].second, sum_.size());
    size_t next = i + 1;
    if (gradients.size() > 1 || (next < touched_.size() && touched_[next].first == place)) {
      std::copy(gradient.begin(), gradient.end(), sum_.begin());
      for (; next < touched_.size() && touched_[next].first == place; ++next) {
        for (size_t k = 0; k < sum_.size(); ++k) sum_[k] += touched_[next].second[k];
      }
      for (float& value : sum_) value /= divisor;
      gradient = sum_;
    }
    rule_->Apply(Values(place), gradient, State(place), push);
    i = next;
  }
}

std::span<const float> RowPiece::Read(int worker, const Payload& request) {
  if (request.bytes().empty()) return {};
  const Result<RowsView> view = ViewRows(request.bytes(), spec_);
  answer_.resize(view.ok() ? view->rows.size() * sum_.size() : 0);
  for (size_t i = 0; i < answer_.size() / sum_.size(); ++i) {
    const int64_t place = Touch(view->rows[i]);
    rule_->OnPull(Values(place), State(place), worker);
    std::copy_n(RowAt(place), sum_.size(),
                answer_.begin() + static_cast<std::ptrdiff_t>(i * sum_.size()));
  }
  return answer_;
}

}  // namespace mydist::ps
