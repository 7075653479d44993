// Codecs on lists of tensors. What travels together is encoded in one call, without the GIL.

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/compress/gradient_codec.h"
#include "kernels/compress/low_rank.h"
#include "torch/bindings.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"
#include "torch/gil.h"

namespace mydist {
namespace {

using Tensors = std::vector<at::Tensor>;

// A range of one tensor of a list.
struct Cut {
  int64_t tensor;
  int64_t begin;
  int64_t count;
};

template <typename T>
std::span<T> SpanOf(const at::Tensor& tensor, at::ScalarType type, const char* what) {
  if (tensor.scalar_type() != type || !tensor.device().is_cpu() || !tensor.is_contiguous()) {
    CollectiveCall::Refuse(std::string("codec: ") + what +
                           " is not contiguous memory of the CPU of the type expected");
  }
  return {static_cast<T*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.numel())};
}

std::span<float> FloatsOf(const at::Tensor& tensor, const char* what) {
  return SpanOf<float>(tensor, at::kFloat, what);
}

std::vector<std::span<float>> FloatsOfAll(const Tensors& tensors, const char* what) {
  std::vector<std::span<float>> spans;
  spans.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) spans.push_back(FloatsOf(tensor, what));
  return spans;
}

// `cuts`: int64, shape (n, 3). Each range lies inside its tensor; `tensors` has their lengths.
std::vector<Cut> CutsOf(const at::Tensor& cuts, const std::vector<std::span<float>>& tensors) {
  const std::span<int64_t> numbers = SpanOf<int64_t>(cuts, at::kLong, "the list of cuts");
  std::vector<Cut> ranges;
  ranges.reserve(numbers.size() / 3);
  for (size_t i = 0; i + 2 < numbers.size(); i += 3) {
    const Cut cut = {numbers[i], numbers[i + 1], numbers[i + 2]};
    const auto known = static_cast<int64_t>(tensors.size());
    if (cut.tensor < 0 || cut.tensor >= known || cut.begin < 0 || cut.count < 0 ||
        cut.begin + cut.count >
            static_cast<int64_t>(tensors[static_cast<size_t>(cut.tensor)].size())) {
      CollectiveCall::Refuse("codec: a cut lies outside of its tensor");
    }
    ranges.push_back(cut);
  }
  return ranges;
}

// Bound as mydist._C.GradientCodec; see _C.pyi. Used by one thread at a time.
class CodecBinding {
 public:
  CodecBinding(const std::string& name, const CodecOptions& options)
      : codec_(ValueOrThrow(PayloadCodec::Make(name, options))) {}

  int64_t block() const { return codec_.codec().Block(); }
  bool is_fixed() const { return codec_.codec().IsFixed(); }
  int64_t state_floats() const { return codec_.codec().StateFloats(); }
  int64_t MaxBytes(int64_t count) const { return codec_.MaxBytes(count); }

  py::tuple Encode(const Tensors& values, const at::Tensor& cuts, const Tensors& states,
                   const std::vector<double>& factors, const std::vector<uint64_t>& keys,
                   const at::Tensor& out) const {
    const Call call(*this, values, cuts, states, factors);
    const std::span<uint8_t> bytes = SpanOf<uint8_t>(out, at::kByte, "the output");
    if (keys.size() != values.size()) CollectiveCall::Refuse("codec: expected a key per tensor");
    int64_t needed = 0;
    for (const Cut& cut : call.cuts) needed += codec_.MaxBytes(cut.count);
    if (needed > static_cast<int64_t>(bytes.size())) {
      CollectiveCall::Refuse("codec: the output is too small");
    }
    std::vector<int64_t> sizes;
    sizes.reserve(call.cuts.size());
    bool is_finite = true;
    {
      const WithoutGil without_gil;
      int64_t at = 0;
      for (const Cut& cut : call.cuts) {
        const uint64_t key =
            MixKeys(keys[static_cast<size_t>(cut.tensor)], static_cast<uint64_t>(cut.begin));
        const EncodedBody written = codec_.Write(Range(call.values, cut), State(call, cut),
                                                 call.Factor(cut), key, bytes.data() + at);
        sizes.push_back(written.bytes);
        at += written.bytes;
        is_finite = is_finite && written.is_finite;
      }
    }
    return py::make_tuple(sizes, is_finite);
  }

  // Whether all that was encoded is finite; `counts` are the values of each payload.
  bool IsFinite(const at::Tensor& payloads, const at::Tensor& counts) const {
    std::span<const uint8_t> bytes = SpanOf<uint8_t>(payloads, at::kByte, "the payload");
    bool is_finite = true;
    for (const int64_t count : SpanOf<int64_t>(counts, at::kLong, "the list of counts")) {
      const PayloadCodec::Payload payload = ValueOrThrow(codec_.Read(bytes, count));
      bytes = bytes.subspan(static_cast<size_t>(payload.bytes));
      is_finite = is_finite && payload.is_finite;
    }
    return is_finite;
  }

  void DecodeAdd(const at::Tensor& payloads, const at::Tensor& cuts, double scale,
                 const Tensors& out) const {
    const std::vector<std::span<float>> spans = FloatsOfAll(out, "an output");
    const std::vector<Cut> ranges = CutsOf(cuts, spans);
    std::span<const uint8_t> bytes = SpanOf<uint8_t>(payloads, at::kByte, "the payload");
    const auto decode_all = [&]() -> Status {
      for (const Cut& cut : ranges) {
        MYDIST_ASSIGN_OR_RETURN(const PayloadCodec::Payload payload, codec_.Read(bytes, cut.count));
        MYDIST_RETURN_IF_ERROR(
            codec_.codec().DecodeAdd(payload.body, static_cast<float>(scale), Range(spans, cut)));
        bytes = bytes.subspan(static_cast<size_t>(payload.bytes));
      }
      return Status::Ok();
    };
    ThrowIfError(RunWithoutGil(decode_all));
  }

  void Keep(const Tensors& values, const at::Tensor& cuts, const Tensors& states,
            const std::vector<double>& factors, const at::Tensor& payloads) const {
    const Call call(*this, values, cuts, states, factors);
    std::span<const uint8_t> bytes = SpanOf<uint8_t>(payloads, at::kByte, "the payload");
    const auto keep_all = [&]() -> Status {
      for (const Cut& cut : call.cuts) {
        MYDIST_ASSIGN_OR_RETURN(const PayloadCodec::Payload payload, codec_.Read(bytes, cut.count));
        MYDIST_RETURN_IF_ERROR(codec_.codec().Keep(Range(call.values, cut), State(call, cut),
                                                   call.Factor(cut), payload.body));
        bytes = bytes.subspan(static_cast<size_t>(payload.bytes));
      }
      return Status::Ok();
    };
    ThrowIfError(RunWithoutGil(keep_all));
  }

 private:
  // The lists of a call, checked.
  struct Call {
    Call(const CodecBinding& codec, const Tensors& values_, const at::Tensor& cuts_,
         const Tensors& states_, const std::vector<double>& factors_)
        : values(FloatsOfAll(values_, "a gradient")),
          states(FloatsOfAll(states_, "a state")),
          factors(factors_),
          cuts(CutsOf(cuts_, values)) {
      const auto floats = static_cast<size_t>(codec.state_floats());
      bool fits =
          floats == 0 || (states.size() == values.size() && factors.size() == values.size());
      for (size_t i = 0; fits && floats > 0 && i < values.size(); ++i) {
        fits = states[i].size() == values[i].size() * floats;
      }
      if (!fits) CollectiveCall::Refuse("codec: expected a state and a factor per tensor");
    }

    float Factor(const Cut& cut) const {
      return factors.empty() ? 1 : static_cast<float>(factors[static_cast<size_t>(cut.tensor)]);
    }

    std::vector<std::span<float>> values;
    std::vector<std::span<float>> states;  // Empty for a codec without state.
    const std::vector<double>& factors;
    std::vector<Cut> cuts;
  };

  template <typename Function>
  static Status RunWithoutGil(const Function& function) {
    const WithoutGil without_gil;
    return function();
  }

  static std::span<float> Range(const std::vector<std::span<float>>& tensors, const Cut& cut) {
    return tensors[static_cast<size_t>(cut.tensor)].subspan(static_cast<size_t>(cut.begin),
                                                            static_cast<size_t>(cut.count));
  }

  // The states of a value lie side by side.
  std::span<float> State(const Call& call, const Cut& cut) const {
    const int64_t floats = state_floats();
    if (floats == 0) return {};
    return call.states[static_cast<size_t>(cut.tensor)].subspan(
        static_cast<size_t>(cut.begin * floats), static_cast<size_t>(cut.count * floats));
  }

  PayloadCodec codec_;
};

// P and Q of a matrix of `rows` rows, with as many columns each. Refused otherwise.
void ExpectFactors(size_t values, int64_t rows, size_t p, size_t q) {
  const auto height = static_cast<size_t>(rows);
  const bool is_matrix = rows > 0 && values > 0 && values % height == 0;
  if (!is_matrix || p == 0 || p % height != 0 || q != p / height * (values / height)) {
    CollectiveCall::Refuse("codec: the factors do not fit the matrix");
  }
}

LowRankMatrix MatrixOf(const at::Tensor& values, const at::Tensor& residual, double factor,
                       int64_t rows) {
  const LowRankMatrix m = {.values = FloatsOf(values, "a gradient"),
                           .residual = FloatsOf(residual, "a state"),
                           .factor = static_cast<float>(factor),
                           .rows = rows};
  if (m.residual.size() != m.values.size()) CollectiveCall::Refuse("codec: expected a state");
  return m;
}

void Times(const at::Tensor& values, const at::Tensor& residual, double factor, int64_t rows,
           const at::Tensor& q, const at::Tensor& p) {
  const LowRankMatrix m = MatrixOf(values, residual, factor, rows);
  const std::span<float> left = FloatsOf(p, "a factor");
  const std::span<float> right = FloatsOf(q, "a factor");
  ExpectFactors(m.values.size(), rows, left.size(), right.size());
  const WithoutGil without_gil;
  LowRankTimes(m, right, left);
}

void TransposedTimes(const at::Tensor& values, const at::Tensor& residual, double factor,
                     int64_t rows, const at::Tensor& p, const at::Tensor& q) {
  const LowRankMatrix m = MatrixOf(values, residual, factor, rows);
  const std::span<float> left = FloatsOf(p, "a factor");
  const std::span<float> right = FloatsOf(q, "a factor");
  ExpectFactors(m.values.size(), rows, left.size(), right.size());
  const WithoutGil without_gil;
  LowRankTransposedTimes(m, left, right);
}

void Product(const at::Tensor& p, const at::Tensor& q, int64_t rows, double scale,
             const at::Tensor& out) {
  const std::span<float> to = FloatsOf(out, "a gradient");
  const std::span<float> left = FloatsOf(p, "a factor");
  const std::span<float> right = FloatsOf(q, "a factor");
  ExpectFactors(to.size(), rows, left.size(), right.size());
  const WithoutGil without_gil;
  LowRankProduct(left, right, rows, static_cast<float>(scale), to);
}

void KeepLowRank(const at::Tensor& values, const at::Tensor& residual, double factor, int64_t rows,
                 const at::Tensor& p, const at::Tensor& q) {
  const LowRankMatrix m = MatrixOf(values, residual, factor, rows);
  const std::span<float> left = FloatsOf(p, "a factor");
  const std::span<float> right = FloatsOf(q, "a factor");
  ExpectFactors(m.values.size(), rows, left.size(), right.size());
  const std::span<float> kept = FloatsOf(residual, "a state");
  const WithoutGil without_gil;
  LowRankKeep(m.values, m.factor, rows, left, right, kept);
}

void OrthogonalizeColumns(const at::Tensor& columns, int64_t length) {
  const std::span<float> floats = FloatsOf(columns, "a factor");
  if (length <= 0 || floats.size() % static_cast<size_t>(length) != 0) {
    CollectiveCall::Refuse("codec: the factor has no columns of this length");
  }
  const WithoutGil without_gil;
  Orthogonalize(floats, length);
}

}  // namespace

void BindCodecs(py::module_& module) {
  using py::arg;
  py::class_<CodecBinding>(module, "GradientCodec")
      .def(py::init<const std::string&, const CodecOptions&>(), arg("name"), arg("options"))
      .def_property_readonly("block", &CodecBinding::block)
      .def_property_readonly("is_fixed", &CodecBinding::is_fixed)
      .def_property_readonly("state_floats", &CodecBinding::state_floats)
      .def("max_bytes", &CodecBinding::MaxBytes, arg("count"))
      .def("encode", &CodecBinding::Encode, arg("values"), arg("cuts"), arg("states"),
           arg("factors"), arg("keys"), arg("out"))
      .def("is_finite", &CodecBinding::IsFinite, arg("payloads"), arg("counts"))
      .def("decode_add", &CodecBinding::DecodeAdd, arg("payloads"), arg("cuts"), arg("scale"),
           arg("out"))
      .def("keep", &CodecBinding::Keep, arg("values"), arg("cuts"), arg("states"), arg("factors"),
           arg("payloads"));
  module.def("low_rank_times", &Times, arg("values"), arg("residual"), arg("factor"), arg("rows"),
             arg("q"), arg("p"));
  module.def("low_rank_transposed_times", &TransposedTimes, arg("values"), arg("residual"),
             arg("factor"), arg("rows"), arg("p"), arg("q"));
  module.def("low_rank_product", &Product, arg("p"), arg("q"), arg("rows"), arg("scale"),
             arg("out"));
  module.def("low_rank_keep", &KeepLowRank, arg("values"), arg("residual"), arg("factor"),
             arg("rows"), arg("p"), arg("q"));
  module.def("orthogonalize", &OrthogonalizeColumns, arg("columns"), arg("length"));
}

}  // namespace mydist
