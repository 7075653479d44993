// Transfers that a backend has to send in pieces: with a lowered limit, and one beyond 2^31 bytes.
#pragma once

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace mydist::conformance {

// Around the ring: pieces of `chunk_bytes`, sizes just below, at and above multiples of it.
inline void DeliversInPieces(Transport& transport, int64_t chunk_bytes) {
  const int next = (transport.rank() + 1) % transport.size();
  const int previous = (transport.rank() + transport.size() - 1) % transport.size();
  for (const int64_t bytes :
       {chunk_bytes - 1, chunk_bytes, chunk_bytes + 1, 3 * chunk_bytes, 7 * chunk_bytes + 5}) {
    std::vector<uint32_t> out(static_cast<size_t>(bytes / 4 + 1));
    std::vector<uint32_t> in(out.size(), 0);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<uint32_t>(i * 2654435761u) + static_cast<uint32_t>(transport.rank());
    }
    // Two transfers per pair, so that the pieces of one could be taken for the other's.
    const SendTransfer sends[] = {{next, out.data(), bytes}, {next, out.data(), 4}};
    uint32_t tail = 0;
    const ReceiveTransfer receives[] = {{previous, in.data(), bytes}, {previous, &tail, 4}};
    const Status status = transport.Exchange(sends, receives);
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (size_t i = 0; i < static_cast<size_t>(bytes / 4); ++i) {
      ASSERT_EQ(in[i], static_cast<uint32_t>(i * 2654435761u) + static_cast<uint32_t>(previous))
          << "word " << i << " of " << bytes << " bytes";
    }
    EXPECT_EQ(tail, static_cast<uint32_t>(previous));
  }
}

constexpr int64_t kBeyond32Bits = (int64_t{1} << 31) + (int64_t{200} << 20) + 5;

// Whether `copies` buffers of kBeyond32Bits fit into free memory with room to spare.
inline bool HasMemoryForLargeTransfer(int copies) {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return false;
  const auto free_bytes = static_cast<int64_t>((info.freeram + info.bufferram) * info.mem_unit);
  return free_bytes > copies * kBeyond32Bits + (int64_t{2} << 30);
}

// Rank 0 sends more than 2^31 bytes to rank 1; the others have nothing to do.
inline void DeliversBeyond32Bits(Transport& transport) {
  constexpr int64_t kStride = int64_t{1} << 20;
  if (transport.rank() > 1) return;
  // Not a vector: zeroing 2.2 GB takes longer than the transfer.
  const std::unique_ptr<uint8_t[]> memory(new uint8_t[kBeyond32Bits]);
  const auto mark = [](int64_t offset) { return static_cast<uint8_t>(offset / kStride * 37 + 11); };
  if (transport.rank() == 0) {
    for (int64_t i = 0; i < kBeyond32Bits; i += kStride) memory[i] = mark(i);
    memory[kBeyond32Bits - 1] = 0xee;
    const SendTransfer send{1, memory.get(), kBeyond32Bits};
    ASSERT_TRUE(transport.Exchange({&send, 1}, {}).ok());
    return;
  }
  const ReceiveTransfer receive{0, memory.get(), kBeyond32Bits};
  ASSERT_TRUE(transport.Exchange({}, {&receive, 1}).ok());
  for (int64_t i = 0; i < kBeyond32Bits; i += kStride) ASSERT_EQ(memory[i], mark(i)) << i;
  EXPECT_EQ(memory[kBeyond32Bits - 1], 0xee);
}

}  // namespace mydist::conformance
