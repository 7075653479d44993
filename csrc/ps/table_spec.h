// TableSpec: what a table is, as the workers declare it to every server. Pure data, with its bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "ps/rules/update_rule.h"

namespace mydist::ps {

enum class Consistency : uint8_t {
  kSync = 0,   // The mean over the workers is applied once all have pushed.
  kSsp = 1,    // Each push is applied alone; a pull waits for workers that are too far behind.
  kAsync = 2,  // Each push is applied alone; no pull waits.
};

// What a row holds before the first push.
struct RowInit {
  enum class Kind : uint8_t { kZeros = 0, kUniform = 1, kNormal = 2 };
  Kind kind = Kind::kZeros;
  double scale = 0;   // Uniform: from -scale to scale. Normal: the standard deviation.
  uint64_t seed = 0;  // The same row gets the same values on any server.

  bool operator==(const RowInit&) const = default;
};

struct MYDIST_EXPORT TableSpec {
  std::string name;
  int64_t elements = 0;        // Of a dense table; 0: rows.
  int64_t piece_elements = 0;  // Of each piece of a dense table but the last.
  int64_t rows = 0;
  int64_t width = 0;  // Elements of a row.
  RowInit init;
  RuleSpec rule;
  Consistency consistency = Consistency::kSync;
  // SSP: how many clocks a worker may be ahead of the slowest. Sync: how many workers a clock does
  // not wait for.
  int64_t bound = 0;
  std::vector<int> ranks;  // The workers: their ranks in the job, ascending.

  bool is_dense() const { return rows == 0; }
  int workers() const { return static_cast<int>(ranks.size()); }
  // The pieces of a dense table. Rows are one piece on each server.
  int64_t PieceCount() const;
  // The elements of a piece: where the first lies in the table, and how many.
  int64_t PieceBegin(int64_t piece) const { return piece * piece_elements; }
  int64_t PieceElements(int64_t piece) const;

  bool operator==(const TableSpec&) const = default;
};

inline constexpr size_t kMaxTableName = 256;
inline constexpr size_t kMaxWorkers = size_t{1} << 20;
inline constexpr int64_t kMaxPieceElements = int64_t{1} << 22;  // 16 MiB.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;

MYDIST_EXPORT std::vector<uint8_t> EncodeTableSpec(const TableSpec& spec);
// A peer sent it. kInternal when the bytes are none, kInvalidArgument when sizes or the rule are
// not allowed.
MYDIST_EXPORT Result<TableSpec> DecodeTableSpec(std::span<const uint8_t> bytes);
// kInvalidArgument naming what is not allowed.
MYDIST_EXPORT Status CheckTableSpec(const TableSpec& spec);

// "sync", "sync(backup=1)", "ssp(3)" or "async".
MYDIST_EXPORT std::string ConsistencyText(const TableSpec& spec);

}  // namespace mydist::ps
