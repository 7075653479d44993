// Inquiry: whom a rank waits for in the end. It asks the ranks it waits for whom they wait for in
// turn, and so on, until the answers end: at ranks that wait for no other rank, or give no answer.
// Pure; owned by the Inquirer. All ranks that wait ask at about the same time and answer with what
// they have learnt so far, so a chain of n ranks takes log n rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "controller/control_port.h"
#include "controller/membership.h"
#include "controller/messages/wire.h"
#include "world/process_set.h"

namespace mydist {

class Inquiry {
 public:
  // Begins anew. `own`: this rank. `awaited`: whom it waits for.
  void Begin(int32_t own, std::span<const int32_t> awaited);
  void End() { is_open_ = false; }
  bool is_open() const { return is_open_; }

  // Ranks to be asked now; each once.
  std::vector<int32_t> TakeToAsk();
  // `rank` waits for these; for no rank, or for itself: others wait for what it has yet to do.
  // Nothing when it has not been asked.
  void TakeAnswer(int32_t rank, std::span<const int32_t> awaited);

  // Those at the ends of the chains, as far as they are known: what others need to hear of it.
  // Whom it waits for where the chains have no end.
  std::vector<int32_t> Ends() const;
  // Those that have given no answer so far, and those that wait for no other rank; ascending.
  std::vector<int32_t> Silent() const;
  std::vector<int32_t> Idle() const { return {idle_.begin(), idle_.end()}; }

 private:
  std::vector<int32_t> awaited_;
  bool is_open_ = false;
  std::vector<int32_t> to_ask_;
  std::set<int32_t> met_;     // Ever named, this rank among them.
  std::set<int32_t> silent_;  // Asked, or to be asked, and no answer yet.
  std::set<int32_t> idle_;
};

// Inquirer: asks other ranks whom they wait for, and answers those that ask this one.
// Owned by the Coordinator; used by the thread that drives the engine.
class Inquirer {
 public:
  // The ranks that this rank waits for with a tensor. Empty: others may wait for this rank.
  using Awaited = std::function<std::vector<int32_t>(const Question& about)>;

  // Both pointers outlive this object.
  Inquirer(int32_t rank, int32_t size, ControlPort* port, const Farewells* farewells)
      : rank_(rank), size_(size), port_(port), farewells_(farewells) {}

  // Begins to ask; `awaited`: whom this rank waits for.
  Status Begin(ProcessSetId process_set, const std::string& tensor,
               std::span<const int32_t> awaited);
  const Inquiry& inquiry() const { return inquiry_; }
  void End() { inquiry_.End(); }
  // What the ranks that have answered in this inquiry, or the last one, have done last.
  const std::map<int32_t, Progress>& progress() const { return progress_; }
  // By which this rank answers such questions.
  void TellProgressBy(std::function<Progress()> tell) { tell_progress_ = std::move(tell); }

  // A question of another rank, or an answer to ours. kInternal when it is malformed.
  Status TakeQuestion(const IncomingMessage& message, const Awaited& awaited);
  Status TakeAnswer(const IncomingMessage& message);
  // A rank has left: its farewell is its answer.
  Status TakeFarewell(int32_t rank);

 private:
  Status Ask();

  const int32_t rank_;
  const int32_t size_;
  ControlPort* const port_;
  const Farewells* const farewells_;
  Inquiry inquiry_;
  Question question_;  // The number says which inquiry an answer belongs to.
  std::map<int32_t, Progress> progress_;
  std::function<Progress()> tell_progress_;
};

}  // namespace mydist
