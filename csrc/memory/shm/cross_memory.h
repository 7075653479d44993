// CrossMemory: reading and writing private memory of another process of the same user through the
// kernel. Stateless but for the probe's target; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "memory/shm/arena_layout.h"

namespace mydist::shm::cross_memory {

// Copies `bytes` at `address` of process `pid` to `memory`, or the other way. Returns errno, or 0
// when all of it was copied. Blocks until then.
int Read(pid_t pid, uint64_t address, void* memory, int64_t bytes);
int Write(pid_t pid, uint64_t address, const void* memory, int64_t bytes);

// Whether all of these bytes of this process are mapped.
bool IsMapped(const void* memory, int64_t bytes);

// Memory of this process for peers to try their hands on; holds `nonce` from now on.
uint64_t ProbeAddress(const Nonce& nonce);

// Whether the target of process `pid` at `address` can be read and written, and is the one that
// holds `nonce`. Empty, or why not.
std::string Probe(pid_t pid, uint64_t address, const Nonce& nonce);

}  // namespace mydist::shm::cross_memory
