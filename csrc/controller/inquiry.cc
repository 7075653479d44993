#include "controller/inquiry.h"

#include <algorithm>
#include <utility>

namespace mydist {

void Inquiry::Begin(int32_t own, std::span<const int32_t> awaited) {
  *this = Inquiry();
  awaited_.assign(awaited.begin(), awaited.end());
  is_open_ = true;
  met_.insert(own);
  // Others wait for what this rank has yet to do.
  if (std::find(awaited.begin(), awaited.end(), own) != awaited.end()) idle_.insert(own);
  for (const int32_t rank : awaited) {
    if (!met_.insert(rank).second) continue;
    silent_.insert(rank);
    to_ask_.push_back(rank);
  }
}

std::vector<int32_t> Inquiry::TakeToAsk() { return std::exchange(to_ask_, {}); }

void Inquiry::TakeAnswer(int32_t rank, std::span<const int32_t> awaited) {
  if (silent_.erase(rank) == 0) return;
  const bool waits_for_itself = std::find(awaited.begin(), awaited.end(), rank) != awaited.end();
  if (awaited.empty() || waits_for_itself) idle_.insert(rank);
  for (const int32_t next : awaited) {
    if (!met_.insert(next).second) continue;
    silent_.insert(next);
    to_ask_.push_back(next);
  }
}

std::vector<int32_t> Inquiry::Ends() const {
  std::vector<int32_t> ends = Silent();
  ends.insert(ends.end(), idle_.begin(), idle_.end());
  return ends.empty() ? awaited_ : ends;
}

std::vector<int32_t> Inquiry::Silent() const { return {silent_.begin(), silent_.end()}; }

Status Inquirer::Begin(ProcessSetId process_set, const std::string& tensor,
                       std::span<const int32_t> awaited) {
  question_ = {question_.number + 1, process_set, tensor};
  progress_.clear();
  inquiry_.Begin(rank_, awaited);
  return Ask();
}

// One that has left gives no answer any more, and is not silent: it has said why.
Status Inquirer::Ask() {
  for (std::vector<int32_t> ranks = inquiry_.TakeToAsk(); !ranks.empty();
       ranks = inquiry_.TakeToAsk()) {
    for (const int32_t rank : ranks) {
      if (farewells_->HasLeft(rank)) {
        inquiry_.TakeAnswer(rank, farewells_->LossOf(rank).failure().ranks);
      } else {
        MYDIST_RETURN_IF_ERROR(port_->SendIfThere(rank, EncodeQuestion(question_)));
      }
    }
  }
  return Status::Ok();
}

Status Inquirer::TakeFarewell(int32_t rank) {
  if (!inquiry_.is_open()) return Status::Ok();
  inquiry_.TakeAnswer(rank, farewells_->LossOf(rank).failure().ranks);
  return Ask();
}

// A rank that also asks answers with what its own inquiry has found.
Status Inquirer::TakeQuestion(const IncomingMessage& message, const Awaited& awaited) {
  MYDIST_ASSIGN_OR_RETURN(const Question question, DecodeQuestion(message.payload));
  Answer answer{question.number, inquiry_.is_open() ? inquiry_.Ends() : awaited(question), {}};
  if (tell_progress_) answer.progress = tell_progress_();
  return port_->SendIfThere(message.source, EncodeAnswer(answer));
}

Status Inquirer::TakeAnswer(const IncomingMessage& message) {
  MYDIST_ASSIGN_OR_RETURN(const Answer answer, DecodeAnswer(message.payload));
  for (const int32_t rank : answer.awaited) {
    if (rank < 0 || rank >= size_) {
      return Status::Internal("it waits for rank " + std::to_string(rank) + " of a job of " +
                              std::to_string(size_) + " ranks");
    }
  }
  if (!inquiry_.is_open() || answer.number != question_.number) return Status::Ok();
  progress_[message.source] = answer.progress;
  inquiry_.TakeAnswer(message.source, answer.awaited);
  return Ask();
}

}  // namespace mydist
