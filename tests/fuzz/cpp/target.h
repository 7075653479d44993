// Target: a function that takes any bytes, as a peer, a user or a file may send them, and must keep
// its promises whatever they are. Pure but for what it says; one thread.
// libFuzzer calls it in the program `fuzz`, and test_fuzz with the inputs of tests/fuzz/corpus.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mydist::fuzz {

using Bytes = std::vector<uint8_t>;

struct Target {
  std::string name;  // Of its folder in the corpus, too.
  void (*run)(std::span<const uint8_t> input);
  std::vector<Bytes> (*seeds)();  // Inputs that go far into the parser, mostly from the encoder.
};

// Of one file; what all of them have is in AllTargets.
std::vector<Target> BaseTargets();
std::vector<Target> ConfigTargets();
std::vector<Target> ControllerTargets();
std::vector<Target> CoordinatorTargets();
std::vector<Target> GlooTargets();
std::vector<Target> JobTargets();
std::vector<Target> KernelTargets();
std::vector<Target> MemoryTargets();
std::vector<Target> PsTargets();
std::vector<Target> TimelineTargets();
std::vector<Target> WorldTargets();

std::vector<Target> AllTargets();

Bytes ToBytes(std::string_view text);
std::string ToText(std::span<const uint8_t> bytes);

// Input: takes an input apart from the front. What is missing at its end reads as 0 or empty.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte();
  int64_t Int64();                  // Of eight bytes.
  Bytes Block();                    // Of a length in two bytes, and as much of it as there is.
  std::string Line();               // Up to the next '\0', which goes with it.
  std::span<const uint8_t> Rest();  // All.

 private:
  std::span<const uint8_t> rest_;
};

// Ends the program, naming the promise.
[[noreturn]] void Broken(const char* file, int line, const char* promise);

}  // namespace mydist::fuzz

// A promise of the code under test.
#define FUZZ_EXPECT(promise)                         \
  (static_cast<bool>(promise) ? static_cast<void>(0) \
                              : ::mydist::fuzz::Broken(__FILE__, __LINE__, #promise))
