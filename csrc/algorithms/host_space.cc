#include "algorithms/host_space.h"

#include "kernels/element.h"

namespace mydist {

bool HostSpace::Supports(const BatchTraits& traits) const {
  const Reduction reduction{.dtype = traits.dtype, .op = traits.reduce_op};
  return traits.device < 0 && (!Reduces(traits.op) || reduction.ValidateFor(traits.op).ok());
}

Status HostSpace::Copy(void* target, const void* source, int64_t bytes) {
  CopyBytes(target, source, bytes);
  return Status::Ok();
}

Status HostSpace::Fold(const RankFold& fold) {
  sources_.clear();
  for (int rank = 0; rank < fold.size; ++rank) {
    sources_.push_back(rank == fold.rank ? fold.own
                                         : Advance(AsBytes(fold.others),
                                                   RankFold::Offset(rank, fold.rank, fold.stride)));
  }
  return fold_.Fold(sources_, fold.output, fold.count, fold.reduction);
}

}  // namespace mydist
