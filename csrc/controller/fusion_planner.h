// Fusion planner: which ready tensors share one buffer; the "fuse" step. Pure.
// Every rank runs it on the same responses (those of one Coordinator::Negotiate call) and gets the
// same plan. Invariant: every index appears exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/export.h"
#include "controller/messages/response.h"

namespace mydist {

// Bytes the tensor takes in a fusion buffer: for allgather those of all ranks together.
MYDIST_EXPORT int64_t FusedBytes(const Agreement& agreement);

// Whether the rows that all ranks gather are more than 64-bit sizes can count, whatever is done.
bool HasUncountableRows(const Agreement& agreement);

// The batches to execute, in order; each lists indices into `ready`, ascending. Tensors fuse when
// op, dtype, kind of device, reduce op, scales, root and process set are equal, up to
// `threshold_bytes` (0: nothing fuses); what does not fit begins the next batch, so that tensors of
// a kind that follow each other stay together. A tensor beyond the threshold, an alltoall and a
// barrier stay alone. Members of a group fuse only with each other, whatever the threshold; their
// batches (one per dtype, say) are adjacent. A batch stands where its first member stood.
MYDIST_EXPORT std::vector<std::vector<size_t>> PlanFusion(
    std::span<const std::shared_ptr<const Agreement>> ready, int64_t threshold_bytes);

}  // namespace mydist
