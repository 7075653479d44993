// EngineStats: what the engine has counted since init; shown by mydist.stats(). Pure data.
#pragma once

#include <cstdint>

namespace mydist {

struct EngineStats {
  int64_t control_messages_sent = 0;
  int64_t control_messages_received = 0;
  int64_t control_bytes_sent = 0;
  int64_t cache_hits = 0;
  int64_t cache_misses = 0;
  int64_t frozen_steps = 0;  // Whole steps of a frozen schedule, without negotiation.
  int64_t thaws = 0;         // Times the schedule went back to negotiation.
  // Of the control messages: the words for buckets of a frozen schedule, one per bucket and other
  // host. Only the lowest rank of a host sends and takes them.
  int64_t host_votes_sent = 0;
  int64_t host_votes_received = 0;
  int64_t wakeups = 0;       // Times the engine's thread slept and was woken.
  int64_t hand_overs = 0;    // Times a waiting caller left the rest to another thread.
  int64_t batches = 0;       // Collectives executed.
  int64_t tensors = 0;       // Tensors they completed.
  int64_t tensor_bytes = 0;  // This rank's input bytes of those tensors.
  // Of tensors, to ranks on other hosts; a transfer is one message, however the backend cuts it.
  int64_t inter_host_messages_sent = 0;
  int64_t inter_host_bytes_sent = 0;
  int64_t pack_bytes = 0;  // Of them, those that an allreduce copied into the fusion buffer.
  // Chunks of a tensor on a GPU whose copies to the host had been ordered before the first of them
  // was exchanged, at most.
  int64_t most_staged_chunks = 0;
};

}  // namespace mydist
