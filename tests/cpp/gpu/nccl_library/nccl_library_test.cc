// Where NCCL is found, and in which order. What a process has loaded stays, so every test has a
// process of its own, which says what it found on stderr.
#include "gpu/nccl_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace mydist::nccl {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

const std::string kFolder = MYDIST_STAND_IN_FOLDER;
const std::string kGood = kFolder + "/good";        // 2.32.3
const std::string kOther = kFolder + "/other";      // 2.28.7
const std::string kOld = kFolder + "/old";          // 2.17.8
const std::string kLacking = kFolder + "/lacking";  // 2.30.4 without ncclSend
const std::string kNoNccl = kFolder + "/no_nccl";
const std::string kRenamed = kFolder + "/renamed/libnccl-1a2b3c.so";  // 2.29.1
const std::string kFile = "/libnccl.so.2";

void Load(const std::string& file) {
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  std::cerr << dlerror();
  std::exit(2);
}

// 0: found.
[[noreturn]] void Search(const NcclPlaces& places) {
  const Result<NcclLibrary> library = NcclLibrary::Open(places);
  if (!library.ok()) {
    std::cerr << library.status().message() << "\n";
    std::exit(1);
  }
  std::cerr << NcclVersionText(library->api.version) << " from " << library->path << "\n";
  std::exit(0);
}

TEST(NcclLibrary, IsFoundInAFolder) {
  EXPECT_EXIT(Search({.path = "", .folders = {kFolder + "/nothing", kGood, kOther}}),
              ExitedWithCode(0), AllOf(HasSubstr("2.32.3"), HasSubstr(kGood + kFile)));
}

TEST(NcclLibrary, WhatTheProcessHasComesFirst) {
  EXPECT_EXIT(
      {
        Load(kOther + kFile);
        Search({.path = "", .folders = {kGood}});
      },
      ExitedWithCode(0), AllOf(HasSubstr("2.28.7"), HasSubstr(kOther + kFile)));
}

TEST(NcclLibrary, WhatTheProcessHasUnderAnotherNameIsFoundToo) {
  EXPECT_EXIT(
      {
        Load(kRenamed);
        Search({.path = "", .folders = {kGood}});
      },
      ExitedWithCode(0), AllOf(HasSubstr("2.29.1"), HasSubstr(kRenamed)));
}

// A second one beside it would be worse.
TEST(NcclLibrary, AnOldOneInTheProcessIsAnError) {
  EXPECT_EXIT(
      {
        Load(kOld + kFile);
        Search({.path = "", .folders = {kGood}});
      },
      ExitedWithCode(1),
      AllOf(HasSubstr("which this process has"), HasSubstr("2.17.8, expected 2.18.0")));
}

TEST(NcclLibrary, PluginsOfNcclAreNoNccl) {
  EXPECT_EXIT(
      {
        Load(kNoNccl + kFile);
        Search({.path = kGood + kFile, .folders = {}});
      },
      ExitedWithCode(0), HasSubstr("2.32.3"));
  EXPECT_EXIT(
      {
        Load(kFolder + "/renamed/libnccl-net.so");
        Search({.path = "", .folders = {kGood}});
      },
      ExitedWithCode(0), HasSubstr("2.32.3"));
}

TEST(NcclLibrary, AFolderOfNoUseIsPassedOver) {
  EXPECT_EXIT(Search({.path = "", .folders = {kOld, kLacking, kNoNccl, kOther}}), ExitedWithCode(0),
              AllOf(HasSubstr("2.28.7"), HasSubstr(kOther)));
}

TEST(NcclLibrary, TheNamedFileIsTakenWhateverElseIsThere) {
  EXPECT_EXIT(
      {
        Load(kOther + kFile);
        Search({.path = kRenamed, .folders = {kGood}});
      },
      ExitedWithCode(0), HasSubstr("2.29.1"));
}

TEST(NcclLibrary, ANamedFileOfNoUseIsAnError) {
  EXPECT_EXIT(Search({.path = "/nowhere/libnccl.so.2", .folders = {kGood}}), ExitedWithCode(1),
              AllOf(HasSubstr("MYDIST_NCCL_LIBRARY='/nowhere/libnccl.so.2' cannot be used"),
                    HasSubstr("No such file")));
  EXPECT_EXIT(Search({.path = kLacking + kFile, .folders = {kGood}}), ExitedWithCode(1),
              HasSubstr("it is NCCL 2.30.4, but has no function ncclSend"));
}

// What is said of a library with these answers; every function of it is the same one.
std::string Refusal(int version, Outcome outcome) {
  static int the_version;
  static Outcome the_outcome;
  the_version = version;
  the_outcome = outcome;
  const auto get_version = [](int* to) {
    *to = the_version;
    return the_outcome;
  };
  const SymbolLookup lookup = [&](const char*) {
    return reinterpret_cast<void*>(static_cast<Outcome (*)(int*)>(get_version));
  };
  return ReadNcclApi(lookup).status().message();
}

TEST(NcclLibrary, TheOldestVersionIsTaken) {
  EXPECT_EQ(Refusal(21800, Outcome::kSuccess), "");
  EXPECT_EQ(Refusal(21799, Outcome::kSuccess), "it is NCCL 2.17.99, expected 2.18.0 or newer");
  EXPECT_EQ(Refusal(21800, Outcome::kInternalError), "ncclGetVersion failed with code 3");
}

TEST(NcclLibrary, AllPlacesAreNamedWhenThereIsNone) {
  if (void* installed = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(installed);
    GTEST_SKIP() << "this system has an NCCL";
  }
  EXPECT_EXIT(Search({.path = "", .folders = {"/nowhere", kOld}}), ExitedWithCode(1),
              AllOf(HasSubstr("not loaded in this process; not in /nowhere; " + kOld + kFile +
                              ": it is NCCL 2.17.8, expected"),
                    HasSubstr("libnccl.so.2: cannot open shared object file"),
                    HasSubstr("pip install nvidia-nccl-cu13"), HasSubstr("MYDIST_NCCL_LIBRARY")));
}

}  // namespace
}  // namespace mydist::nccl
