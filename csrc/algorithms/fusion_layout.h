// FusionLayout: where each tensor of a fused batch lies in the fusion buffer (fuse). Pure. Tensors
// of one dtype lie one after the other without gaps: offsets stay multiples of the element, and a
// batch moves exactly the bytes of its tensors. What goes to or comes from several ranks lies rank
// by rank, and within a rank tensor by tensor. Pointers may be null when there is nothing to copy.
// What has to be copied is returned as segments that count bytes, unless they are to be cast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/batch.h"
#include "kernels/conversion.h"

namespace mydist {

// Bytes all tensors take together.
int64_t PackedBytes(std::span<const BatchTensor> tensors, int64_t element_bytes);
// Where the outputs lie when they do so one after the other, as packed, and no input but of a
// tensor in place lies among them: what is not there yet goes there, and nothing has to be
// unpacked. Null when they do not, or are all empty.
void* PackedOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes);
// All inputs into `fused`, and `fused` into all outputs, but for those of wide tensors.
ConvertSegments Pack(std::span<const BatchTensor> tensors, int64_t element_bytes, uint8_t* fused);
ConvertSegments Unpack(const uint8_t* fused, int64_t element_bytes,
                       std::span<const BatchTensor> tensors);
// Those of wide tensors; these segments count elements.
ConvertSegments PackWide(std::span<const BatchTensor> tensors, int64_t element_bytes,
                         uint8_t* fused);
ConvertSegments UnpackWide(const uint8_t* fused, int64_t element_bytes,
                           std::span<const BatchTensor> tensors);
// Input to output of each tensor that is not in place.
ConvertSegments CopyToOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes);

// What each rank contributes (bytes) or gets (elements) of all tensors together.
std::vector<int64_t> FusedCounts(std::span<const GatherTensor> tensors, int size);
std::vector<int64_t> FusedCounts(std::span<const ScatterTensor> tensors, int size);

// Allgather: the inputs of `rank` into its part `own` of the buffer; the whole buffer to the
// outputs.
ConvertSegments PackContribution(std::span<const GatherTensor> tensors, int rank, uint8_t* own);
ConvertSegments UnpackGathered(const uint8_t* fused, std::span<const GatherTensor> tensors,
                               int size);

// Reducescatter: the inputs, cut by rank; the reduced part of `rank` to the outputs.
ConvertSegments PackRankMajor(std::span<const ScatterTensor> tensors, int64_t element_bytes,
                              int size, uint8_t* fused);
ConvertSegments UnpackScattered(const uint8_t* reduced, int64_t element_bytes, int rank,
                                std::span<const ScatterTensor> tensors);

// `bytes` rounded up to the buffer's alignment.
int64_t AlignedBytes(int64_t bytes);

}  // namespace mydist
