#include "ps/table_spec.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/bytes.h"

namespace mydist::ps {
namespace {

Status NotAllowed(const TableSpec& spec, const std::string& what) {
  return Status::InvalidArgument("table '" + spec.name + "': " + what);
}

Status CheckSizes(const TableSpec& spec) {
  if (spec.is_dense()) {
    if (spec.elements < 1) return NotAllowed(spec, "it has no elements");
    if (spec.piece_elements < 1 || spec.piece_elements > kMaxPieceElements) {
      return NotAllowed(spec, "a piece has " + std::to_string(spec.piece_elements) +
                                  " elements, expected 1 to " + std::to_string(kMaxPieceElements));
    }
    if (spec.PieceCount() > int64_t{1} << 31) return NotAllowed(spec, "it has too many pieces");
    return Status::Ok();
  }
  if (spec.rows < 1) {
    return NotAllowed(spec, "it has " + std::to_string(spec.rows) + " rows, expected at least 1");
  }
  if (spec.width < 1 || spec.width > kMaxWidth) {
    return NotAllowed(spec, "its width is " + std::to_string(spec.width) + ", expected 1 to " +
                                std::to_string(kMaxWidth));
  }
  if (!std::isfinite(spec.init.scale) || spec.init.scale < 0) {
    return NotAllowed(spec, "the scale of its start values must be a number of at least 0");
  }
  return Status::Ok();
}

}  // namespace

int64_t TableSpec::PieceCount() const {
  return is_dense() ? (elements - 1) / piece_elements + 1 : 1;  // Any number of elements has one.
}

int64_t TableSpec::PieceElements(int64_t piece) const {
  return std::min(piece_elements, elements - PieceBegin(piece));
}

Status CheckTableSpec(const TableSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kMaxTableName) {
    return Status::InvalidArgument("a table has a name of " + std::to_string(spec.name.size()) +
                                   " bytes, expected 1 to " + std::to_string(kMaxTableName));
  }
  MYDIST_RETURN_IF_ERROR(CheckSizes(spec));
  const bool is_sorted = std::adjacent_find(spec.ranks.begin(), spec.ranks.end(),
                                            std::greater_equal<>()) == spec.ranks.end();
  if (spec.ranks.empty() || spec.ranks.size() > kMaxWorkers || !is_sorted || spec.ranks[0] < 0) {
    return NotAllowed(spec, "its workers must be ranks in ascending order");
  }
  if (spec.bound < 0) return NotAllowed(spec, "the bound of its consistency is below 0");
  if (spec.consistency == Consistency::kSync && spec.bound >= spec.workers()) {
    return NotAllowed(spec, "Sync(backup=" + std::to_string(spec.bound) + ") needs more than " +
                                std::to_string(spec.bound) + " workers, and it has " +
                                std::to_string(spec.workers()));
  }
  return MakeRule(spec.rule, spec.workers()).status();
}

std::vector<uint8_t> EncodeTableSpec(const TableSpec& spec) {
  ByteWriter writer;
  writer.String(spec.name, kMaxTableName);
  writer.I64(spec.elements);
  writer.I64(spec.piece_elements);
  writer.I64(spec.rows);
  writer.I64(spec.width);
  writer.U8(static_cast<uint8_t>(spec.init.kind));
  writer.F64(spec.init.scale);
  writer.U64(spec.init.seed);
  EncodeRuleSpec(spec.rule, writer);
  writer.U8(static_cast<uint8_t>(spec.consistency));
  writer.I64(spec.bound);
  writer.Count(spec.ranks.size());
  for (const int rank : spec.ranks) writer.I32(rank);
  return std::move(writer).Take();
}

Result<TableSpec> DecodeTableSpec(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "declaration of a table");
  TableSpec spec;
  spec.name = reader.String(kMaxTableName);
  spec.elements = reader.I64();
  spec.piece_elements = reader.I64();
  spec.rows = reader.I64();
  spec.width = reader.I64();
  const uint8_t kind = reader.U8();
  if (kind > static_cast<uint8_t>(RowInit::Kind::kNormal)) reader.Fail("unknown start values");
  spec.init.kind = static_cast<RowInit::Kind>(kind);
  spec.init.scale = reader.F64();
  spec.init.seed = reader.U64();
  spec.rule = DecodeRuleSpec(reader);
  const uint8_t consistency = reader.U8();
  if (consistency > static_cast<uint8_t>(Consistency::kAsync)) reader.Fail("unknown consistency");
  spec.consistency = static_cast<Consistency>(consistency);
  spec.bound = reader.I64();
  const size_t workers = reader.Count(4);
  for (size_t i = 0; i < workers; ++i) spec.ranks.push_back(reader.I32());
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  MYDIST_RETURN_IF_ERROR(CheckTableSpec(spec));
  return spec;
}

std::string ConsistencyText(const TableSpec& spec) {
  const std::string bound = std::to_string(spec.bound);
  switch (spec.consistency) {
    case Consistency::kSync:
      return spec.bound == 0 ? "sync" : "sync(backup=" + bound + ")";
    case Consistency::kSsp:
      return "ssp(" + bound + ")";
    case Consistency::kAsync:
      return "async";
  }
  return "unknown";
}

}  // namespace mydist::ps
