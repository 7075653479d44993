#include "memory/shm/stream_copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/element.h"

namespace mydist::shm {
#if defined(__SSE2__)

namespace {

// Below, fetching the lines costs nothing yet.
constexpr int64_t kStreamFromBytes = 1536;
constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kPagesBytes = 4 * kPage;  // Four at a time: eight were no faster.

void StreamLine(uint8_t* output, const uint8_t* source) {
  for (int64_t part = 0; part < kLine; part += int64_t{sizeof(__m128i)}) {
    const auto* from = reinterpret_cast<const __m128i*>(source + part);
    _mm_stream_si128(reinterpret_cast<__m128i*>(output + part), _mm_loadu_si128(from));
  }
}

// A line of each page in turn: the processor fetches ahead within a page, so that it reads several
// of them at once.
void StreamPages(uint8_t* output, const uint8_t* source) {
  for (int64_t offset = 0; offset < kPage; offset += kLine) {
    for (int64_t page = offset; page < kPagesBytes; page += kPage) {
      StreamLine(output + page, source + page);
    }
  }
}

void StreamLines(uint8_t* output, const uint8_t* source, int64_t count) {
  int64_t done = 0;
  for (; count * kLine - done >= kPagesBytes; done += kPagesBytes) {
    StreamPages(output + done, source + done);
  }
  for (; done < count * kLine; done += kLine) StreamLine(output + done, source + done);
  // A release store does not wait for these stores by itself.
  _mm_sfence();
}

}  // namespace

void StreamCopy(void* output, const void* source, int64_t bytes) {
  if (bytes < kStreamFromBytes) return CopyBytes(output, source, bytes);
  uint8_t* target = AsBytes(output);
  const uint8_t* from = AsBytes(source);
  const auto head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) % kLine);
  const int64_t lines = (bytes - head) / kLine;
  const int64_t tail = head + lines * kLine;
  CopyBytes(target, from, head);
  StreamLines(target + head, from + head, lines);
  CopyBytes(target + tail, from + tail, bytes - tail);
}

#else

void StreamCopy(void* output, const void* source, int64_t bytes) {
  CopyBytes(output, source, bytes);
}

#endif

}  // namespace mydist::shm
