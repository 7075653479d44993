// SpareMemory gives blocks out again, none twice at a time, and all of them back in the end.
#include "gpu/spare_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace mydist::nccl {
namespace {

// The heap.
class Heap {
 public:
  SpareMemory::Source Source() {
    return {[this](int64_t bytes) -> Result<uint8_t*> {
              MutexLock lock(mutex_);
              ++get_count_;
              used_bytes_ += bytes;
              auto* data = static_cast<uint8_t*>(std::malloc(static_cast<size_t>(bytes)));
              blocks_[data] = bytes;
              return data;
            },
            [this](uint8_t* data) {
              MutexLock lock(mutex_);
              used_bytes_ -= blocks_.at(data);
              blocks_.erase(data);
              std::free(data);
            }};
  }
  int get_count() {
    MutexLock lock(mutex_);
    return get_count_;
  }
  int64_t used_bytes() {
    MutexLock lock(mutex_);
    return used_bytes_;
  }

 private:
  Mutex mutex_;
  int get_count_ MYDIST_GUARDED_BY(mutex_) = 0;
  int64_t used_bytes_ MYDIST_GUARDED_BY(mutex_) = 0;
  std::map<uint8_t*, int64_t> blocks_ MYDIST_GUARDED_BY(mutex_);
};

TEST(SpareMemory, GivesABlockOutAgain) {
  Heap heap;
  {
    SpareMemory memory(heap.Source());
    uint8_t* const first = memory.Take(100000).value().get();
    EXPECT_EQ(memory.Take(100000).value().get(), first);
    EXPECT_EQ(memory.Take(99000).value().get(), first);
    EXPECT_EQ(heap.get_count(), 1);
    const auto one = memory.Take(100000).value();
    EXPECT_NE(memory.Take(100000).value().get(), one.get()) << "it is out";
  }
  EXPECT_EQ(heap.used_bytes(), 0);
}

TEST(SpareMemory, ALargeBlockIsNotWastedOnASmallOne) {
  Heap heap;
  SpareMemory memory(heap.Source());
  { const auto large = memory.Take(1 << 20).value(); }
  const auto small = memory.Take(4096).value();
  EXPECT_EQ(heap.get_count(), 2);
  const auto half = memory.Take(1 << 19).value();
  EXPECT_EQ(heap.get_count(), 2);
}

TEST(SpareMemory, NothingIsNoBlock) {
  Heap heap;
  SpareMemory memory(heap.Source());
  EXPECT_EQ(memory.Take(0).value(), nullptr);
  EXPECT_EQ(memory.Take(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(heap.get_count(), 0);
}

// Each of them may be enough; who gives back what he needs himself comes last.
TEST(SpareMemory, OthersAreAskedWhenNothingElseHelps) {
  using Log = std::vector<std::string>;
  Log log;
  uint8_t room = 0;
  int gets_to_fail = 0;
  SpareMemory memory({[&](int64_t) -> Result<uint8_t*> {
                        log.emplace_back("get");
                        if (gets_to_fail-- > 0) return Status::Internal("none left");
                        return &room;
                      },
                      [&](uint8_t*) { log.emplace_back("give back"); },
                      [&] { log.emplace_back("ask others"); }});
  const Log expected[] = {
      {"get"}, {"get", "give back", "get"}, {"get", "give back", "get", "ask others", "get"}};
  for (int failures = 0; failures < 3; ++failures) {
    gets_to_fail = 0;
    { const auto spare = memory.Take(100).value(); }
    log.clear();
    gets_to_fail = failures;
    // Too large for the spare one.
    EXPECT_TRUE(memory.Take(int64_t{100000} << (8 * failures)).ok());
    EXPECT_EQ(log, expected[failures]);
    memory.GiveBackSpares();
  }
  log.clear();
  gets_to_fail = 3;
  EXPECT_EQ(memory.Take(100).status().message(), "none left");
  EXPECT_EQ(log, (Log{"get", "get", "ask others", "get"}));
}

TEST(SpareMemory, ThreadsShareIt) {
  Heap heap;
  {
    SpareMemory memory(heap.Source());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          const auto block = memory.Take(4096 * (1 + i % 3)).value();
          *block = static_cast<uint8_t>(t);
          EXPECT_EQ(*block, t);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(heap.used_bytes(), 0);
}

}  // namespace
}  // namespace mydist::nccl
