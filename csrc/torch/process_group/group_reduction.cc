#include "torch/process_group/group_reduction.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>
#include <vector>

#include "torch/tensor_memory.h"

namespace mydist {
namespace {

// The rows of all members, one after the other. `counts`: of rows; `own` is contiguous.
Result<at::Tensor> AllRows(const LaneSite& site, const at::Tensor& own,
                           const std::vector<int64_t>& counts) {
  std::vector<int64_t> shape = own.sizes().vec();
  int64_t row_bytes = own.element_size();
  for (size_t i = 1; i < shape.size(); ++i) row_bytes *= shape[i];
  std::vector<int64_t> bytes;
  shape[0] = 0;
  for (const int64_t count : counts) {
    bytes.push_back(count * row_bytes);
    shape[0] += count;
  }
  const at::Tensor all = at::empty(shape, own.options());
  MYDIST_ASSIGN_OR_RETURN(Collectives * mover, site.ForBytes(OpKind::kAllgather));
  MYDIST_RETURN_IF_ERROR(mover->Allgather(own.const_data_ptr(), all.data_ptr(), bytes));
  return all;
}

}  // namespace

void CheckMoved(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.layout() == at::kStrided, "mydist: ", call,
                    " got a tensor on ", tensor.device().str(), " of layout ", tensor.layout(),
                    ", expected a dense one on the CPU");
}

void CheckWritten(const at::Tensor& tensor, const char* call) {
  CheckMoved(tensor, call);
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "mydist: ", call,
                    " got a tensor for its result in which several elements share memory, as "
                    "expand() makes it; give it a .clone()");
}

GroupReduction::GroupReduction(const c10d::ReduceOp& op, const at::Tensor& tensor,
                               const char* call) {
  CheckWritten(tensor, call);
  const std::optional<DataType> dtype = ToDataType(tensor.scalar_type());
  TORCH_CHECK_VALUE(dtype.has_value(), "mydist: ", call, " cannot reduce ",
                    DtypeName(tensor.scalar_type()));
  reduction_.dtype = *dtype;
  const bool is_bool = *dtype == DataType::kBool;
  const auto require = [&](bool holds, const char* name, const char* expected) {
    TORCH_CHECK_VALUE(holds, "mydist: ", call, " with ", name, " got ",
                      DtypeName(tensor.scalar_type()), ", expected ", expected);
  };
  reduction_.op = ReduceOp::kSum;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      if (is_bool) reduction_.op = ReduceOp::kMax;
      break;
    case c10d::ReduceOp::AVG:
      require(tensor.is_floating_point() || tensor.is_complex(), "AVG", "a floating-point type");
      reduction_.op = ReduceOp::kAverage;
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction_.op = is_bool ? ReduceOp::kMin : ReduceOp::kProduct;
      break;
    case c10d::ReduceOp::MIN:
      reduction_.op = ReduceOp::kMin;
      break;
    case c10d::ReduceOp::MAX:
      reduction_.op = ReduceOp::kMax;
      break;
    case c10d::ReduceOp::BAND:
      bitwise_ = Bitwise::kAnd;
      break;
    case c10d::ReduceOp::BOR:
      bitwise_ = Bitwise::kOr;
      break;
    case c10d::ReduceOp::BXOR:
      bitwise_ = Bitwise::kXor;
      break;
    case c10d::ReduceOp::PREMUL_SUM: {
      require(tensor.is_floating_point() || tensor.is_complex(), "PREMUL_SUM",
              "a floating-point type");
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "mydist: ", call, " with PREMUL_SUM got no factor");
      reduction_.prescale = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                            : factor->double_factor;
      break;
    }
    default:
      TORCH_CHECK_VALUE(false, "mydist: ", call, " got an unknown reduction");
  }
  if (bitwise_ != Bitwise::kNone) {
    require(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true), "a bitwise operation",
            "an integer type");
    return;
  }
  const Status valid = reduction_.Validate();
  TORCH_CHECK_VALUE(valid.ok(), "mydist: ", call, " cannot reduce ",
                    DtypeName(tensor.scalar_type()), ": ", valid.message());
}

Result<Collectives*> GroupReduction::AlgorithmFor(const LaneSite& site, OpKind op,
                                                  int64_t elements) const {
  const Reduction reduction = reduction_.Resolved(site.size());
  MYDIST_RETURN_IF_ERROR(reduction.Validate());
  return site.For({op, reduction.dtype, reduction.op, -1, elements * SizeOf(reduction.dtype)});
}

Status GroupReduction::Allreduce(const LaneSite& site, const InAndOut& memory) const {
  if (bitwise_ != Bitwise::kNone) {
    MYDIST_ASSIGN_OR_RETURN(const at::Tensor result, Folded(site, memory.dense()));
    memory.dense().copy_(result);
    return memory.CopyBack();
  }
  MYDIST_ASSIGN_OR_RETURN(Collectives * algorithm,
                          AlgorithmFor(site, OpKind::kAllreduce, memory.count()));
  MYDIST_RETURN_IF_ERROR(
      algorithm->Allreduce(memory.data(), memory.count(), reduction_.Resolved(site.size())));
  return memory.CopyBack();
}

Status GroupReduction::AllreducePacked(const LaneSite& site,
                                       const std::vector<at::Tensor>& tensors) const {
  const at::Tensor flat = Joined(tensors);
  MYDIST_RETURN_IF_ERROR(Allreduce(site, InAndOut(flat)));
  if (LieInOrder(tensors)) return Status::Ok();
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
  return Status::Ok();
}

Status GroupReduction::Reduce(const LaneSite& site, const InAndOut& memory, int root) const {
  if (bitwise_ != Bitwise::kNone) {
    MYDIST_ASSIGN_OR_RETURN(const at::Tensor result, Folded(site, memory.dense()));
    if (site.rank() == root) memory.dense().copy_(result);
  } else {
    MYDIST_ASSIGN_OR_RETURN(Collectives * algorithm,
                            AlgorithmFor(site, OpKind::kReduce, memory.count()));
    MYDIST_RETURN_IF_ERROR(algorithm->Reduce(memory.data(), memory.data(), memory.count(),
                                             reduction_.Resolved(site.size()), root));
  }
  return site.rank() == root ? memory.CopyBack() : Status::Ok();
}

Status GroupReduction::Reducescatter(const LaneSite& site, const at::Tensor& input,
                                     const std::vector<int64_t>& counts,
                                     const InAndOut& output) const {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (bitwise_ != Bitwise::kNone) {
    MYDIST_ASSIGN_OR_RETURN(const at::Tensor result, Folded(site, input));
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + site.rank(), int64_t{0});
    output.dense().view({-1}).copy_(result.narrow(0, begin, output.count()));
    return output.CopyBack();
  }
  MYDIST_ASSIGN_OR_RETURN(Collectives * algorithm,
                          AlgorithmFor(site, OpKind::kReducescatter, total));
  MYDIST_RETURN_IF_ERROR(algorithm->Reducescatter(input.const_data_ptr(), output.data(), counts,
                                                  reduction_.Resolved(site.size())));
  return output.CopyBack();
}

Result<at::Tensor> GroupReduction::Folded(const LaneSite& site, const at::Tensor& input) const {
  const at::Tensor own = input.reshape({-1});
  const at::Tensor all = at::empty({site.size(), own.numel()}, own.options());
  MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kAllgather));
  const std::vector<int64_t> counts(static_cast<size_t>(site.size()),
                                    static_cast<int64_t>(own.nbytes()));
  MYDIST_RETURN_IF_ERROR(bytes->Allgather(own.const_data_ptr(), all.data_ptr(), counts));
  at::Tensor result = all[0].clone();
  for (int rank = 1; rank < site.size(); ++rank) {
    switch (bitwise_) {
      case Bitwise::kAnd:
        result.bitwise_and_(all[rank]);
        break;
      case Bitwise::kOr:
        result.bitwise_or_(all[rank]);
        break;
      default:
        result.bitwise_xor_(all[rank]);
    }
  }
  return result.view(input.sizes());
}

SparseSum::SparseSum(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  constexpr const char* kCall = "mydist: all_reduce of a sparse tensor";
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.layout() == at::kSparse, kCall, " got one on ",
                    tensor.device().str(), " of layout ", tensor.layout(),
                    ", expected one of layout Sparse (COO) on the CPU");
  const std::optional<DataType> dtype = ToDataType(tensor.scalar_type());
  TORCH_CHECK_VALUE(dtype.has_value(), kCall, " cannot add up ", DtypeName(tensor.scalar_type()));
  const bool is_average = op == c10d::ReduceOp::AVG;
  TORCH_CHECK_VALUE(op == c10d::ReduceOp::SUM || is_average, kCall,
                    " adds up and averages only, expected SUM or AVG");
  TORCH_CHECK_VALUE(!is_average || tensor.is_floating_point(), kCall, " with AVG got ",
                    DtypeName(tensor.scalar_type()), ", expected a floating-point type");
  std::ostringstream layout;
  layout << "sparse " << tensor.sizes() << " with " << tensor.sparse_dim() << " sparse dimension"
         << (tensor.sparse_dim() == 1 ? "" : "s");
  call_ = {OpKind::kAllreduce, *dtype, tensor.numel(),
           is_average ? ReduceOp::kAverage : ReduceOp::kSum};
  call_.layout = layout.str();
}

Status SparseSum::Run(const LaneSite& site, const at::Tensor& tensor) const {
  const at::Tensor own = tensor.detach().coalesce();
  const at::Tensor own_count = at::full({1}, own._nnz(), at::kLong);
  MYDIST_ASSIGN_OR_RETURN(
      const at::Tensor all_counts,
      AllRows(site, own_count, std::vector<int64_t>(static_cast<size_t>(site.size()), 1)));
  const auto* const begin = all_counts.const_data_ptr<int64_t>();
  const std::vector<int64_t> counts(begin, begin + site.size());
  // An index is a row, too.
  MYDIST_ASSIGN_OR_RETURN(const at::Tensor indices,
                          AllRows(site, own._indices().t().contiguous(), counts));
  MYDIST_ASSIGN_OR_RETURN(const at::Tensor values,
                          AllRows(site, own._values().contiguous(), counts));
  at::Tensor sum;
  int64_t row = 0;
  for (const int64_t count : counts) {
    const at::Tensor part =
        at::sparse_coo_tensor(indices.narrow(0, row, count).t(), values.narrow(0, row, count),
                              tensor.sizes(), tensor.options());
    sum = sum.defined() ? sum.add_(part) : part.clone();
    row += count;
  }
  if (call_.reduce_op == ReduceOp::kAverage) sum.div_(site.size());
  tensor.copy_(sum.coalesce());  // A detached one would keep its own indices and values.
  return Status::Ok();
}

}  // namespace mydist
