#include "torch/process_group/sparse_sum.h"

#include <ATen/ATen.h>

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
