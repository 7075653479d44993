#include "transport/shm_port.h"

namespace mydist::shm {

ShmPort::ShmPort(std::unique_ptr<Arena> arena)
    : arena_(std::move(arena)),
      waiter_(arena_.get()),
      transport_(arena_.get(), &waiter_),
      steps_(arena_.get(), &waiter_),
      peer_memory_(arena_.get(), &waiter_) {}

ShmPort::~ShmPort() = default;

std::optional<std::vector<int>> ShmPort::IndicesOf(const std::vector<int>& ranks) const {
  std::vector<int> indices;
  for (const int rank : ranks) {
    const std::optional<int> index = arena_->IndexOf(rank);
    if (!index) return std::nullopt;
    indices.push_back(*index);
  }
  return indices;
}

std::string ShmPort::Description() const {
  const std::string& no_heap = arena_->heap_refusal();
  const std::string& no_attach = arena_->attach_refusal();
  return "fusion buffers " +
         (no_heap.empty() ? "and gradients lie in it, up to " +
                                std::to_string(heap()->zone_bytes()) + " bytes of each rank"
                          : "are private (" + no_heap + ")") +
         ", private tensors " +
         (no_attach.empty() ? "are read where they lie (process_vm_readv)"
                            : "are copied through it (" + no_attach + ")");
}

}  // namespace mydist::shm
