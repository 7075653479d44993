// What is put on the streams of a fake device.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "fakes/fake_device.h"
#include "kernels/conversion.h"

namespace mydist::testing {
namespace {

bool Overlap(const MemoryRange& a, const MemoryRange& b) {
  const auto* a_begin = static_cast<const uint8_t*>(a.begin);
  const auto* b_begin = static_cast<const uint8_t*>(b.begin);
  return a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

std::string_view NameOf(Use use) { return use == Use::kRead ? "reads" : "writes"; }

struct SegmentRange {
  MemoryRange range;
  Use use;
};

// Each range once: in place, source and target are the same.
std::vector<SegmentRange> RangesOf(std::span<const ConvertSegment> segments,
                                   const Conversion& conversion) {
  std::vector<SegmentRange> ranges;
  for (const auto& [source, target, count] : segments) {
    ranges.push_back({{target, count * SizeOf(conversion.to)}, Use::kWrite});
    if (source == target) continue;
    ranges.push_back({{source, count * SizeOf(conversion.from)}, Use::kRead});
  }
  return ranges;
}

bool TargetsAreAlone(std::vector<SegmentRange> ranges) {
  const auto begin = [](const SegmentRange& range) {
    return reinterpret_cast<uintptr_t>(range.range.begin);
  };
  std::sort(ranges.begin(), ranges.end(),
            [&](const auto& a, const auto& b) { return begin(a) < begin(b); });
  uintptr_t end_of_all = 0;
  uintptr_t end_of_targets = 0;
  for (const SegmentRange& range : ranges) {
    const bool is_target = range.use == Use::kWrite;
    if (begin(range) < (is_target ? end_of_all : end_of_targets)) return false;
    const uintptr_t end = begin(range) + static_cast<uintptr_t>(range.range.bytes);
    end_of_all = std::max(end_of_all, end);
    if (is_target) end_of_targets = std::max(end_of_targets, end);
  }
  return true;
}

bool Exists(const Conversion& conversion) {
  const auto [from, to, factor] = conversion;
  if (from == to) return factor.IsOne() || from != DataType::kBool;
  return (from == DataType::kFloat32 && IsHalfWidth(to)) ||
         (to == DataType::kFloat32 && IsHalfWidth(from));
}

// What is wrong with them, if anything.
std::optional<std::string> MistakeOf(std::span<const ConvertSegment> segments,
                                     const Conversion& conversion) {
  const std::string pair = "from " + std::string(DataTypeName(conversion.from)) + " to " +
                           std::string(DataTypeName(conversion.to));
  if (!Exists(conversion)) return "is asked for what does not exist, " + pair;
  const auto is_aligned = [](const void* address, DataType dtype) {
    // A complex number lies like its parts.
    const int64_t unit = IsComplex(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype);
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(unit) == 0;
  };
  for (const auto& [source, target, count] : segments) {
    if (!is_aligned(source, conversion.from) || !is_aligned(target, conversion.to)) {
      return "is given an address that its type does not allow, " + pair;
    }
    if (source == target && SizeOf(conversion.from) != SizeOf(conversion.to)) {
      return "is to work in place " + pair;
    }
  }
  if (!TargetsAreAlone(RangesOf(segments, conversion))) return "writes where segments overlap";
  return std::nullopt;
}

}  // namespace

Result<std::vector<FakeDevice::Touch>> FakeDevice::TouchesOf(const Operation& operation) {
  std::vector<Touch> touches;
  for (const Use use : {Use::kRead, Use::kWrite}) {
    for (const MemoryRange& range : use == Use::kRead ? operation.reads : operation.writes) {
      if (range.bytes == 0) continue;
      auto found = memory_.Find(range);
      if (!found.ok()) {
        return Violate(operation.name + " " + std::string(NameOf(use)) + " " +
                       found.status().message());
      }
      if ((*found)->kind == MemoryKind::kDevice && (*found)->owner != this) {
        return Violate(operation.name + " " + std::string(NameOf(use)) + " " +
                       (*found)->Describe() + " of another device");
      }
      const int64_t begin = static_cast<const uint8_t*>(range.begin) - (*found)->data();
      touches.push_back({*std::move(found), begin, begin + range.bytes, use});
    }
  }
  return touches;
}

Status FakeDevice::Order(const std::vector<Touch>& touches, const Access& access,
                         const VectorClock& clock) {
  for (const Touch& touch : touches) {
    const auto conflict = touch.allocation->accesses.Find(touch.begin, touch.end, touch.use, clock);
    if (!conflict) continue;
    return Violate(*access.what + " " + std::string(NameOf(touch.use)) + " byte " +
                   std::to_string(conflict->offset) + " of " + touch.allocation->Describe() +
                   ", which " + *conflict->earlier.what + " " + std::string(NameOf(conflict->use)) +
                   ", and nothing puts the one behind the " + "other");
  }
  for (const Touch& touch : touches) {
    touch.allocation->accesses.Note(touch.begin, touch.end, touch.use, access);
  }
  return Status::Ok();
}

Status FakeDevice::Put(FakeStream& stream, Operation operation) {
  operation.name += " (operation " + std::to_string(++operation_count_) + ", on stream " +
                    std::to_string(stream.actor()) + ")";
  MYDIST_ASSIGN_OR_RETURN(std::vector<Touch> touches, TouchesOf(operation));
  stream.clock().Learn(ClockOfHost());
  const int64_t time = stream.clock().Tick(stream.actor());
  auto name = std::make_shared<const std::string>(std::move(operation.name));
  MYDIST_RETURN_IF_ERROR(Order(touches, {std::move(name), stream.actor(), time}, stream.clock()));
  // Whatever happens to the memory, the thread finds it where it was.
  stream.PutWork([touches = std::move(touches), work = std::move(operation.work)] { work(); });
  return Status::Ok();
}

Status FakeDevice::Enqueue(StreamHandle handle, Operation operation) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(FakeStream * stream, StreamOf(handle));
  ++counts_.operations;
  return Put(*stream, std::move(operation));
}

Status FakeDevice::Copy(void* target, const void* source, int64_t bytes, StreamHandle handle) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(FakeStream * stream, StreamOf(handle));
  if (bytes == 0) return Status::Ok();
  Operation copy{.name = "a copy of " + std::to_string(bytes) + " bytes",
                 .reads = {{source, bytes}},
                 .writes = {{target, bytes}},
                 .work = [=] { std::memcpy(target, source, static_cast<size_t>(bytes)); }};
  MYDIST_RETURN_IF_ERROR(CheckCopy(copy));
  ++counts_.copies;
  MYDIST_RETURN_IF_ERROR(Put(*stream, std::move(copy)));
  CountInFlight(*stream, copies_in_flight_, counts_.most_copies_in_flight);
  MYDIST_ASSIGN_OR_RETURN(const auto to, memory_.Find({target, bytes}));
  if (to->kind != MemoryKind::kPinned) return Status::Ok();
  CountInFlight(*stream, fetches_in_flight_, counts_.most_fetches_in_flight);
  return Status::Ok();
}

Status FakeDevice::CheckCopy(const Operation& copy) {
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Touch> touches, TouchesOf(copy));
  if (Overlap(copy.reads[0], copy.writes[0])) {
    return Violate(copy.name + " within " + touches[0].allocation->Describe() +
                   " writes what it reads");
  }
  const auto is_pinned = [](const Touch& touch) {
    return touch.allocation->kind == MemoryKind::kPinned;
  };
  if (std::all_of(touches.begin(), touches.end(), is_pinned)) {
    return Violate(copy.name + " is from pinned memory to pinned memory");
  }
  return Status::Ok();
}

// One more, the last that was put on `stream`.
void FakeDevice::CountInFlight(FakeStream& stream, std::vector<Access>& in_flight, int64_t& most) {
  const VectorClock& host = ClockOfHost();
  std::erase_if(in_flight, [&](const Access& copy) { return host.Knows(copy.actor, copy.time); });
  in_flight.push_back({nullptr, stream.actor(), stream.clock().TimeOf(stream.actor())});
  most = std::max(most, static_cast<int64_t>(in_flight.size()));
}

Status FakeDevice::Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                           StreamHandle handle) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(FakeStream * stream, StreamOf(handle));
  Operation launch{.name = "a kernel over " + std::to_string(segments.size()) + " segments"};
  std::vector<ConvertSegment> filled;
  for (const ConvertSegment& segment : segments) {
    if (segment.element_count == 0) continue;
    launch.reads.push_back({segment.source, segment.element_count * SizeOf(conversion.from)});
    launch.writes.push_back({segment.target, segment.element_count * SizeOf(conversion.to)});
    filled.push_back(segment);
  }
  if (filled.empty()) return Status::Ok();
  if (const auto mistake = MistakeOf(filled, conversion)) {
    return Violate(launch.name + " " + *mistake);
  }
  ++counts_.launches;
  launch.work = [segments = std::move(filled), conversion] {
    ConvertElements(segments, conversion);
  };
  return Put(*stream, std::move(launch));
}

}  // namespace mydist::testing
