#include "target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace mydist::fuzz {

std::vector<Target> AllTargets() {
  std::vector<Target> all;
  for (const auto room :
       {BaseTargets, ConfigTargets, ControllerTargets, CoordinatorTargets, GlooTargets, JobTargets,
        KernelTargets, MemoryTargets, PsTargets, TimelineTargets, WorldTargets}) {
    for (Target& target : room()) all.push_back(std::move(target));
  }
  return all;
}

Bytes ToBytes(std::string_view text) { return {text.begin(), text.end()}; }

std::string ToText(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

uint8_t Input::Byte() {
  if (rest_.empty()) return 0;
  const uint8_t byte = rest_.front();
  rest_ = rest_.subspan(1);
  return byte;
}

int64_t Input::Int64() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= uint64_t{Byte()} << shift;
  return static_cast<int64_t>(value);
}

Bytes Input::Block() {
  const size_t low = Byte();
  const size_t high = Byte();
  const size_t length = std::min(low | high << 8, rest_.size());
  const auto block = rest_.first(length);
  rest_ = rest_.subspan(length);
  return {block.begin(), block.end()};
}

std::string Input::Line() {
  const auto end = std::find(rest_.begin(), rest_.end(), uint8_t{0});
  std::string line(rest_.begin(), end);
  rest_ = rest_.subspan(std::min(line.size() + 1, rest_.size()));
  return line;
}

std::span<const uint8_t> Input::Rest() {
  const auto rest = rest_;
  rest_ = {};
  return rest;
}

void Broken(const char* file, int line, const char* promise) {
  std::fprintf(stderr, "%s:%d: a promise is broken: %s\n", file, line, promise);
  std::abort();
}

}  // namespace mydist::fuzz
