#include "controller/inquirer.h"

namespace mydist {

Status Inquirer::Begin(ProcessSetId process_set, const std::string& tensor,
                       std::span<const int32_t> awaited) {
  question_ = {question_.number + 1, process_set, tensor};
  inquiry_.Begin(rank_, awaited);
  return Ask();
}

Status Inquirer::Ask() {
  for (const int32_t rank : inquiry_.TakeToAsk()) {
    MYDIST_RETURN_IF_ERROR(port_->SendIfThere(rank, EncodeQuestion(question_)));
  }
  return Status::Ok();
}

// A rank that also asks answers with what its own inquiry has found.
Status Inquirer::TakeQuestion(const IncomingMessage& message, const Awaited& awaited) {
  MYDIST_ASSIGN_OR_RETURN(const Question question, DecodeQuestion(message.payload));
  Answer answer{question.number, inquiry_.is_open() ? inquiry_.Ends() : awaited(question)};
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
  inquiry_.TakeAnswer(message.source, answer.awaited);
  return Ask();
}

}  // namespace mydist
