#include "controller/messages/wire.h"

#include <optional>

namespace mydist {

Result<MessageKind> PeekKind(std::span<const uint8_t> message) {
  if (message.size() < kMessageHeaderBytes) {
    return Status::Internal("malformed control message: it has " + std::to_string(message.size()) +
                            " bytes, expected at least " + std::to_string(kMessageHeaderBytes));
  }
  if (message[0] != kWireVersion) {
    return Status::VersionMismatch("it uses version " + std::to_string(message[0]) +
                                   " of the control protocol, this rank uses version " +
                                   std::to_string(kWireVersion) +
                                   ". Install the same mydist version on every host.");
  }
  if (message[1] < 1 || message[1] > 7) {
    return Status::Internal("malformed control message: kind " + std::to_string(message[1]) +
                            " is unknown");
  }
  return static_cast<MessageKind>(message[1]);
}

namespace {

template <typename T>
void TakeEnum(Reader& reader, std::optional<T> value, const char* what, T& out) {
  if (value) {
    out = *value;
  } else {
    reader.Fail(std::string("an unknown ") + what);
  }
}

InputValues ReadValues(Reader& reader) {
  const uint8_t number = reader.U8();
  if (number < kInputValuesCount) return static_cast<InputValues>(number);
  reader.Fail("unknown input values");
  return InputValues::kAccepted;
}

}  // namespace

void WriteRequest(Writer& writer, const Request& request) {
  writer.String(request.name, kMaxNameBytes);
  writer.U8(static_cast<uint8_t>(request.op));
  writer.U8(static_cast<uint8_t>(request.dtype));
  writer.U8(static_cast<uint8_t>(request.reduce_op));
  writer.I32(request.root_rank);
  writer.F64(request.prescale);
  writer.F64(request.postscale);
  writer.I32(request.process_set);
  writer.I32(request.device);
  writer.String(request.group, kMaxNameBytes);
  writer.I32(request.group_size);
  writer.Count(request.shape.dims().size());
  for (const int64_t dim : request.shape.dims()) writer.I64(dim);
  WriteRanks(writer, request.ranks);
  writer.U8(static_cast<uint8_t>(request.values));
}

Request ReadRequest(Reader& reader) {
  Request request;
  request.name = reader.String(kMaxNameBytes);
  TakeEnum(reader, OpKindFromWire(reader.U8()), "op", request.op);
  TakeEnum(reader, DataTypeFromWire(reader.U8()), "dtype", request.dtype);
  TakeEnum(reader, ReduceOpFromWire(reader.U8()), "reduce op", request.reduce_op);
  request.root_rank = reader.I32();
  request.prescale = reader.F64();
  request.postscale = reader.F64();
  request.process_set = reader.I32();
  request.device = reader.I32();
  request.group = reader.String(kMaxNameBytes);
  request.group_size = reader.I32();
  std::vector<int64_t> dims(reader.Count(sizeof(int64_t)));
  for (int64_t& dim : dims) dim = reader.I64();
  request.shape = Shape(std::move(dims));
  request.ranks = ReadRanks(reader);
  request.values = ReadValues(reader);
  if (reader.ok()) {
    const Status status = CheckRequest(request);
    if (!status.ok()) reader.Fail(status.message());
  }
  return request;
}

void WriteRanks(Writer& writer, const std::vector<int32_t>& ranks) {
  writer.Count(ranks.size());
  for (const int32_t rank : ranks) writer.I32(rank);
}

std::vector<int32_t> ReadRanks(Reader& reader) {
  std::vector<int32_t> ranks(reader.Count(sizeof(int32_t)));
  for (int32_t& rank : ranks) rank = reader.I32();
  return ranks;
}

void WriteFirstDims(Writer& writer, const std::vector<int64_t>& first_dims) {
  writer.Count(first_dims.size());
  for (const int64_t first_dim : first_dims) writer.I64(first_dim);
}

std::vector<int64_t> ReadFirstDims(Reader& reader) {
  std::vector<int64_t> first_dims(reader.Count(sizeof(int64_t)));
  for (int64_t& first_dim : first_dims) {
    first_dim = reader.I64();
    if (first_dim < 0) reader.Fail("a first dimension is negative");
  }
  return first_dims;
}

// Skips the header once it is known to be that of `expected`.
Result<Reader> OpenMessage(std::span<const uint8_t> message, MessageKind expected) {
  MYDIST_ASSIGN_OR_RETURN(const MessageKind kind, PeekKind(message));
  if (kind != expected) {
    return Status::Internal("malformed control message: kind " +
                            std::to_string(static_cast<int>(kind)) + ", expected " +
                            std::to_string(static_cast<int>(expected)));
  }
  return Reader(message.subspan(kMessageHeaderBytes), "control message");
}

Status CheckRequest(const Request& request) {
  const auto bad = [&](const std::string& what) {
    return Status::InvalidArgument("tensor '" + request.name.substr(0, 200) + "': " + what);
  };
  const auto too_long = [&](const char* what, const std::string& text) {
    return bad(std::string(what) + " has " + std::to_string(text.size()) +
               " bytes, expected at most " + std::to_string(kMaxNameBytes) + ". Shorten it.");
  };
  if (request.name.empty()) return bad("the name is empty. Give the tensor a name.");
  if (request.name.size() > kMaxNameBytes) return too_long("the name", request.name);
  if (request.group.size() > kMaxNameBytes) return too_long("the group's name", request.group);
  if (!request.group.empty() && request.group_size < 1) {
    return bad("group '" + request.group + "' has size " + std::to_string(request.group_size) +
               ", expected at least 1.");
  }
  if (request.shape.dims().size() > kMaxDims) {
    return bad("the shape has " + std::to_string(request.shape.rank()) +
               " dimensions, expected at most " + std::to_string(kMaxDims) + ". Reshape it.");
  }
  if (request.op == OpKind::kSendReceive && request.ranks.size() != 2) {
    return bad("send/recv names " + std::to_string(request.ranks.size()) +
               " ranks, expected the sender and the receiver.");
  }
  const std::optional<int64_t> count = request.shape.ElementCount();
  // Also the size of one row: the number of rows is not known yet.
  const int64_t most = (int64_t{1} << 62) / CarrierOf(request).bytes();
  if (!count || *count > most || request.shape.RowElementCount() > most) {
    return bad("shape " + request.shape.ToString() +
               " is invalid, expected dimensions of at least 0 and at most 2^62 bytes.");
  }
  return Status::Ok();
}

}  // namespace mydist
