// Inquirer: asks other ranks whom they wait for, and answers those that ask this one.
// Owned by the Coordinator; used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "controller/control_port.h"
#include "controller/inquiry.h"
#include "controller/messages/wire.h"
#include "world/process_set.h"

namespace mydist {

class Inquirer {
 public:
  // The ranks that this rank waits for with a tensor. Empty: others may wait for this rank.
  using Awaited = std::function<std::vector<int32_t>(const Question& about)>;

  // `port` outlives this object.
  Inquirer(int32_t rank, int32_t size, ControlPort* port) : rank_(rank), size_(size), port_(port) {}

  // Begins to ask; `awaited`: whom this rank waits for.
  Status Begin(ProcessSetId process_set, const std::string& tensor,
               std::span<const int32_t> awaited);
  const Inquiry& inquiry() const { return inquiry_; }
  void End() { inquiry_.End(); }

  // A question of another rank, or an answer to ours. kInternal when it is malformed.
  Status TakeQuestion(const IncomingMessage& message, const Awaited& awaited);
  Status TakeAnswer(const IncomingMessage& message);

 private:
  Status Ask();

  const int32_t rank_;
  const int32_t size_;
  ControlPort* const port_;
  Inquiry inquiry_;
  Question question_;  // The number says which inquiry an answer belongs to.
};

}  // namespace mydist
