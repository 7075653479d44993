// Each target takes the inputs that are kept: what once was found stays a test.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "target.h"

namespace mydist::fuzz {
namespace {

const std::filesystem::path& Corpus() {
  static const auto* const kCorpus = new std::filesystem::path(MYDIST_FUZZ_CORPUS);
  return *kCorpus;
}

Bytes Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Target& target : AllTargets()) names.push_back(target.name);
  return names;
}

class FuzzCorpus : public ::testing::TestWithParam<std::string> {
 protected:
  static Target Chosen() {
    for (const Target& target : AllTargets()) {
      if (target.name == GetParam()) return target;
    }
    return {};
  }
};

TEST_P(FuzzCorpus, IsTaken) {
  const Target target = Chosen();
  const std::filesystem::path folder = Corpus() / GetParam();
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder;
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) files.push_back(file);
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty()) << folder;
  for (const std::filesystem::path& file : files) {
    SCOPED_TRACE(file.string());
    target.run(Read(file));
  }
}

// And every beginning of a seed: a message may be cut anywhere.
TEST_P(FuzzCorpus, SeedsAreTakenHoweverCut) {
  const Target target = Chosen();
  const std::vector<Bytes> seeds = target.seeds();
  ASSERT_FALSE(seeds.empty());
  for (const Bytes& seed : seeds) {
    for (size_t size = 0; size <= seed.size(); ++size) target.run(std::span(seed).first(size));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, ::testing::ValuesIn(Names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace mydist::fuzz
