// Declarations of tables: as bytes, and which are allowed.
#include "ps/table_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace mydist::ps {
namespace {

using ::testing::HasSubstr;

TableSpec Dense() {
  return {.name = "fc",
          .elements = 1000,
          .piece_elements = 256,
          .rule = {"sgd", {{"lr", 0.1}}},
          .ranks = {0, 1, 5}};
}

TableSpec Rows() {
  return {.name = "emb",
          .rows = int64_t{1} << 40,
          .width = 64,
          .init = {RowInit::Kind::kUniform, 0.01, std::numeric_limits<uint64_t>::max()},
          .rule = {"add", {}},
          .consistency = Consistency::kSsp,
          .bound = 3,
          .ranks = {2}};
}

TEST(TableSpec, SurvivesItsBytes) {
  for (const TableSpec& spec : {Dense(), Rows()}) {
    const auto again = DecodeTableSpec(EncodeTableSpec(spec));
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(*again, spec);
  }
}

TEST(TableSpec, ThatIsCutOrLongerIsRefused) {
  const std::vector<uint8_t> bytes = EncodeTableSpec(Rows());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeTableSpec(std::span(bytes).first(size)).status().code(), StatusCode::kInternal)
        << size;
  }
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_EQ(DecodeTableSpec(longer).status().code(), StatusCode::kInternal);
}

TEST(TableSpec, HasPiecesThatCoverItOnce) {
  for (const int64_t elements :
       {int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{1000}, int64_t{1024}}) {
    TableSpec spec = Dense();
    spec.elements = elements;
    int64_t end = 0;
    for (int64_t piece = 0; piece < spec.PieceCount(); ++piece) {
      EXPECT_EQ(spec.PieceBegin(piece), end);
      EXPECT_GE(spec.PieceElements(piece), 1);
      end += spec.PieceElements(piece);
    }
    EXPECT_EQ(end, elements);
  }
}

TEST(TableSpec, ThatIsNotAllowedSaysWhy) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  struct Case {
    std::function<void(TableSpec&)> change;
    const char* message;
    bool of_rows = false;
  };
  const std::vector<Case> cases{
      {[](TableSpec& spec) { spec.name = ""; }, "a name of 0 bytes, expected 1 to 256"},
      {[](TableSpec& spec) { spec.elements = 0; }, "table 'fc': it has no elements"},
      {[](TableSpec& spec) { spec.elements = -1; }, "it has no elements"},
      {[](TableSpec& spec) { spec.piece_elements = 0; }, "a piece has 0 elements"},
      {[](TableSpec& spec) { spec.piece_elements = kMaxPieceElements + 1; }, "a piece has"},
      {[](TableSpec& spec) { spec.elements = kMost; }, "it has too many pieces"},
      {[](TableSpec& spec) { spec.ranks = {}; }, "ranks in ascending order"},
      {[](TableSpec& spec) {
         spec.ranks = {1, 1};
       },
       "ranks in ascending order"},
      {[](TableSpec& spec) {
         spec.ranks = {2, 1};
       },
       "ranks in ascending order"},
      {[](TableSpec& spec) {
         spec.ranks = {-1, 1};
       },
       "ranks in ascending order"},
      {[](TableSpec& spec) { spec.bound = -1; }, "the bound of its consistency is below 0"},
      {[](TableSpec& spec) { spec.bound = 3; }, "needs more than 3 workers, and it has 3"},
      {[](TableSpec& spec) { spec.rule.name = "sdg"; }, "there is no rule 'sdg'"},
      {[](TableSpec& spec) {
         spec.rule.options = {{"lr", std::nan("")}};
       },
       "lr is nan"},
      {[](TableSpec& spec) { spec.rule.options.emplace_back("lr", 1.0); }, "has no option 'lr'"},
      {[](TableSpec& spec) { spec.rows = -1; }, "it has -1 rows, expected at least 1", true},
      {[](TableSpec& spec) { spec.width = 0; }, "its width is 0", true},
      {[](TableSpec& spec) { spec.width = kMaxWidth + 1; }, "its width is 1048577", true},
      {[](TableSpec& spec) { spec.init.scale = -1; }, "the scale of its start values", true},
      {[](TableSpec& spec) { spec.init.scale = INFINITY; }, "the scale of its start values", true},
  };
  for (const Case& each : cases) {
    TableSpec spec = each.of_rows ? Rows() : Dense();
    each.change(spec);
    // What a worker is told before it declares, and what a server finds in the bytes.
    for (const Status& status :
         {CheckTableSpec(spec), DecodeTableSpec(EncodeTableSpec(spec)).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << each.message;
      EXPECT_THAT(status.message(), HasSubstr(each.message));
    }
  }
}

TEST(TableSpec, WithUnknownNumbersIsRefused) {
  TableSpec init = Rows();
  init.init.kind = static_cast<RowInit::Kind>(3);
  TableSpec consistency = Dense();
  consistency.consistency = static_cast<Consistency>(3);
  for (const TableSpec& spec : {init, consistency}) {
    EXPECT_EQ(DecodeTableSpec(EncodeTableSpec(spec)).status().code(), StatusCode::kInternal);
  }
}

TEST(TableSpec, SaysHowItsWorkersWait) {
  TableSpec spec = Dense();
  EXPECT_EQ(ConsistencyText(spec), "sync");
  spec.bound = 1;
  EXPECT_EQ(ConsistencyText(spec), "sync(backup=1)");
  spec.consistency = Consistency::kSsp;
  EXPECT_EQ(ConsistencyText(spec), "ssp(1)");
  spec.consistency = Consistency::kAsync;
  EXPECT_EQ(ConsistencyText(spec), "async");
}

TEST(RuleSpec, SurvivesItsBytes) {
  const RuleSpec spec{"sgd", {{"lr", 0.1}, {"momentum", -0.0}}};
  ByteWriter writer;
  EncodeRuleSpec(spec, writer);
  const std::vector<uint8_t> bytes = std::move(writer).Take();
  ByteReader reader(bytes, "rule");
  EXPECT_EQ(DecodeRuleSpec(reader), spec);
  EXPECT_TRUE(reader.Finish().ok());
}

TEST(RuleSpec, WithTooManyOptionsIsRefused) {
  RuleSpec spec{"sgd", {}};
  for (int i = 0; i < 33; ++i) spec.options.emplace_back("lr", 1.0);
  ByteWriter writer;
  EncodeRuleSpec(spec, writer);
  const std::vector<uint8_t> bytes = std::move(writer).Take();
  ByteReader reader(bytes, "rule");
  (void)DecodeRuleSpec(reader);
  EXPECT_EQ(reader.Finish().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace mydist::ps
