// Only the ranks of a set and their hosts decide about bits: whatever CollectivesChoice takes, and
// however it cuts a tensor, gives those of the reference. Random layouts, sets and reductions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "algorithms/host_ranks.h"
#include "conformance/deep.h"
#include "conformance/fold_order_reference.h"
#include "conformance/sanitizers.h"
#include "planner/collectives_choice.h"

namespace mydist {
namespace {

using testing::Elements;
using testing::HostRank;

using Random = std::mt19937;
using Bytes = std::vector<uint8_t>;

int Below(Random& random, size_t limit) { return static_cast<int>(random() % limit); }

template <typename T, size_t kSize>
T OneOf(Random& random, const T (&choices)[kSize]) {
  return choices[Below(random, kSize)];
}

// 1 to 4 hosts with 1 to 3 ranks each, in any order; at least two ranks.
std::string RandomLayout(Random& random) {
  std::string layout;
  for (char host = 'a', last = static_cast<char>('a' + Below(random, 4)); host <= last; ++host) {
    layout.append(static_cast<size_t>(1 + Below(random, 3)), host);
  }
  if (layout.size() == 1) layout += 'b';
  std::shuffle(layout.begin(), layout.end(), random);
  return layout;
}

// All ranks or some, but at least two.
std::vector<int> RandomSet(Random& random, size_t size) {
  std::vector<int> ranks = shm::AllOf(static_cast<int>(size));
  std::shuffle(ranks.begin(), ranks.end(), random);
  if (Below(random, 2) == 0) ranks.resize(2 + static_cast<size_t>(Below(random, size - 1)));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// What a set reduces, in each of the three ways to do that.
struct Case {
  Reduction reduction;
  std::vector<int64_t> counts;  // Of each member, for a reducescatter.
  int root;
  bool is_raw;  // Any bits: NaN, infinity and the tiniest numbers, too.
  uint64_t salt;

  int64_t count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
};

Case RandomCase(Random& random, size_t size) {
  Case made;
  do {
    made.reduction.dtype = OneOf(random, testing::kAllDataTypes);
    made.reduction.op = OneOf(random, testing::kAllReduceOps);
  } while (!HasMeaning(made.reduction.op, made.reduction.dtype));
  const bool scales = made.reduction.dtype != DataType::kBool;
  if (scales) made.reduction.prescale = OneOf(random, {1.0, 1.0, 1.25, 1.1});
  if (scales) made.reduction.postscale = OneOf(random, {1.0, 1.0, 0.7});
  for (size_t r = 0; r < size; ++r) {
    made.counts.push_back(OneOf(random, {0, 0, 1, 2, 7, 64, 501, 1500, 3001}));
  }
  made.root = Below(random, size);
  made.is_raw = scales && Below(random, 4) == 0;
  made.salt = random() % 4096;
  return made;
}

std::vector<Elements> InputsOf(const Case& wanted, int size) {
  auto inputs = testing::ContributionsOf(wanted.reduction.dtype, size, wanted.count(), wanted.salt);
  const auto element_bytes = static_cast<size_t>(SizeOf(wanted.reduction.dtype));
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    Bytes& bytes = inputs[rank].bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto noise =
          static_cast<uint8_t>(testing::Scramble(i ^ rank << 32 ^ wanted.salt << 44));
      // Some zeros of either sign among the others: which is the least depends on the order.
      const size_t element = i / element_bytes;
      const bool is_zero = element % 8 == 0 && testing::Scramble(element ^ rank << 32) % 2 == 0;
      if (wanted.is_raw) bytes[i] = noise;
      if (is_zero) bytes[i] &= i % element_bytes == element_bytes - 1 ? 0x80 : 0;
    }
  }
  return inputs;
}

// The results of a rank, one after the other.
Bytes ResultsOf(Collectives& collectives, const Case& wanted, int rank, const Elements& input) {
  const int64_t count = wanted.count();
  const DataType dtype = wanted.reduction.dtype;
  const Reduction reduction = wanted.reduction.Resolved(static_cast<int>(wanted.counts.size()));
  Elements data = input;
  ExpectOk(collectives.Allreduce(data.data(), count, reduction));
  Elements reduced(dtype, rank == wanted.root ? count : 0);
  ExpectOk(collectives.Reduce(input.data(), reduced.data(), count, reduction, wanted.root));
  Elements part(dtype, wanted.counts[static_cast<size_t>(rank)]);
  ExpectOk(collectives.Reducescatter(input.data(), part.data(), wanted.counts, reduction));
  Bytes all = data.bytes;
  for (const Elements& other : {reduced, part}) {
    all.insert(all.end(), other.bytes.begin(), other.bytes.end());
  }
  return all;
}

// The results of a rank, given what everybody's sum is.
Bytes ResultsFrom(const Elements& whole, const Case& wanted, int rank) {
  const int64_t offset = OffsetOf(wanted.counts, rank);
  const Elements part = testing::SliceOf(whole, offset, wanted.counts[static_cast<size_t>(rank)]);
  Bytes all = whole.bytes;
  if (rank == wanted.root) all.insert(all.end(), whole.bytes.begin(), whole.bytes.end());
  all.insert(all.end(), part.bytes.begin(), part.bytes.end());
  return all;
}

// Every implementation that may serve a set, each in its name.
class Paths {
 public:
  Paths(const HostRank& host, const std::vector<std::string>& hosts, const std::vector<int>& ranks)
      : topology_(*MakeTopology(host.rank, hosts)), transport_(host.meter, ranks) {
    const HostGroups groups = MakeHostGroups(hosts, ranks, host.rank);
    Choose("as it comes", true, std::nullopt, host.port, ranks);
    Choose("hosts first over the backend", false, true, nullptr, ranks);
    Choose("all at once over the backend", false, std::nullopt, nullptr, ranks);
    Choose("all at once", true, false, host.port, ranks);
    constexpr RankOrderedLimits kTiny{
        .one_shot_bytes = 0, .scratch_bytes = 512, .minimum_round_bytes = 128};
    paths_.emplace_back("all at once in many rounds",
                        std::make_unique<RankOrderedCollectives>(&transport_, kTiny, groups));
    if (!groups.HasTwoLevels()) return;
    constexpr HierarchicalLimits kSmall{.one_slice_bytes = 64, .chunk_bytes = 4096};
    paths_.emplace_back("hosts first in many chunks",
                        std::make_unique<Hierarchical>(groups, &transport_, nullptr, kSmall));
  }

  const auto& all() const { return paths_; }

 private:
  void Choose(const std::string& name, bool shared_memory, std::optional<bool> hierarchical,
              shm::ShmPort* port, const std::vector<int>& ranks) {
    Config config;
    config.shared_memory = shared_memory;
    config.hierarchical_allreduce = hierarchical;
    const CollectivesChoice choice(&config, &topology_, port);
    paths_.emplace_back(name, std::move(choice.Make(&transport_, ranks).front()));
  }

  const Topology topology_;
  SubsetTransport transport_;
  std::vector<std::pair<std::string, std::unique_ptr<Collectives>>> paths_;
};

void CheckEveryPath(const Paths& paths, const HostGroups& groups, const Case& wanted, int rank) {
  const auto size = static_cast<int>(wanted.counts.size());
  const std::vector<Elements> inputs = InputsOf(wanted, size);
  const Elements& own = inputs[static_cast<size_t>(rank)];
  std::optional<Bytes> expected;
  if (IsFloatingPoint(wanted.reduction.dtype) || IsComplex(wanted.reduction.dtype)) {
    const Reduction resolved = wanted.reduction.Resolved(size);
    const Elements whole = testing::FoldedByHosts(resolved, groups.members, inputs);
    expected = ResultsFrom(whole, wanted, rank);
    if (!wanted.is_raw) testing::ExpectReduced(whole, inputs, wanted.reduction);
  }
  for (const auto& [name, collectives] : paths.all()) {
    const Bytes results = ResultsOf(*collectives, wanted, rank, own);
    if (!expected) {  // The first; integers can be told from wrong ones in any order.
      Elements whole(wanted.reduction.dtype, own.count());
      std::copy_n(results.begin(), whole.bytes.size(), whole.bytes.begin());
      testing::ExpectReduced(whole, inputs, wanted.reduction);
      expected = ResultsFrom(whole, wanted, rank);
    }
    EXPECT_TRUE(results == *expected)
        << name << ": " << ReduceOpName(wanted.reduction.op) << " of " << own.count() << " "
        << DataTypeName(wanted.reduction.dtype) << (wanted.is_raw ? ", any bits" : "");
  }
}

class FoldOrder : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, FoldOrder,
                         ::testing::Range(0U, InDeep(kIsSanitized ? 15U : 40U, 12U, 5U)));

TEST_P(FoldOrder, IsTheSameOnEveryPath) {
  Random shape(GetParam());
  const std::string layout = RandomLayout(shape);
  SCOPED_TRACE(layout);
  const std::vector<std::string> hosts = testing::HostsOf(layout);
  testing::OnHosts(layout, [&](const HostRank& host) {
    Random random(GetParam() + 1000);  // All ranks draw the same.
    for (int set = 0; set < 3; ++set) {
      const std::vector<int> ranks = RandomSet(random, hosts.size());
      std::vector<Case> cases;
      for (int i = 0; i < 12; ++i) cases.push_back(RandomCase(random, ranks.size()));
      const auto own = std::find(ranks.begin(), ranks.end(), host.rank);
      if (own == ranks.end()) continue;
      const Paths paths(host, hosts, ranks);
      const HostGroups groups = MakeHostGroups(hosts, ranks, host.rank);
      for (const Case& wanted : cases) {
        CheckEveryPath(paths, groups, wanted, static_cast<int>(own - ranks.begin()));
      }
    }
  });
}

}  // namespace
}  // namespace mydist
