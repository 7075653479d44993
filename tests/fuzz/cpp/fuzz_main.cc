// The program `fuzz`: libFuzzer over one target.
//   fuzz --target=NAME FOLDER…  with libFuzzer's options, which begin with one dash
//   fuzz --list                 the names of all targets
//   fuzz --seeds=FOLDER         writes the seeds of all targets there, a folder for each
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "target.h"

namespace mydist::fuzz {
namespace {

void (*g_run)(std::span<const uint8_t>) = nullptr;

[[noreturn]] void List() {
  for (const Target& target : AllTargets()) std::printf("%s\n", target.name.c_str());
  std::exit(0);
}

[[noreturn]] void WriteSeeds(const std::filesystem::path& folder) {
  for (const Target& target : AllTargets()) {
    std::filesystem::create_directories(folder / target.name);
    int number = 0;
    for (const Bytes& seed : target.seeds()) {
      std::ofstream file(folder / target.name / ("seed-" + std::to_string(number++)),
                         std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()),
                 static_cast<std::streamsize>(seed.size()));
    }
  }
  std::exit(0);
}

// libFuzzer passes over what begins with two dashes.
void Choose(std::string_view argument) {
  constexpr std::string_view kTarget = "--target=";
  constexpr std::string_view kSeeds = "--seeds=";
  if (argument == "--list") List();
  if (argument.starts_with(kSeeds)) WriteSeeds(argument.substr(kSeeds.size()));
  if (!argument.starts_with(kTarget)) return;
  for (const Target& target : AllTargets()) {
    if (target.name == argument.substr(kTarget.size())) g_run = target.run;
  }
}

}  // namespace
}  // namespace mydist::fuzz

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) mydist::fuzz::Choose((*arguments)[i]);
  if (mydist::fuzz::g_run != nullptr) return 0;
  std::fprintf(stderr, "fuzz: expected --target=NAME, of those that --list shows\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mydist::fuzz::g_run({data, size});
  return 0;
}
