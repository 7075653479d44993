// What a caller of a job submits, and what has become of it.
#pragma once

#include <string>
#include <vector>

#include "job/job.h"

namespace mydist {

// An allreduce in place.
inline std::vector<Submission> OneTensor(const std::string& name, std::vector<float>* data) {
  std::vector<Submission> tensors(1);
  tensors[0].request.name = name;
  tensors[0].request.shape = Shape({static_cast<int64_t>(data->size())});
  tensors[0].input = data->data();
  tensors[0].output = data->data();
  return tensors;
}

// kTimeout when it is not complete within a minute.
inline Status OutcomeOf(Handle handle) {
  const auto outcome =
      process::WaitWhile(handle, std::chrono::minutes(1), [] { return /*is_wanted=*/false; });
  if (!outcome.ok()) return outcome.status();
  return outcome->value_or(Status::Timeout("not complete after a minute"));
}

}  // namespace mydist
