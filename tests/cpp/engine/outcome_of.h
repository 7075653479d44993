// What has become of a handle, as a caller of the process instance waits for it.
#pragma once

#include "job/job.h"

namespace mydist {

// kTimeout when it is not complete within a minute.
inline Status OutcomeOf(Handle handle) {
  const auto outcome =
      process::WaitWhile(handle, std::chrono::minutes(1), [] { return /*is_wanted=*/false; });
  if (!outcome.ok()) return outcome.status();
  return outcome->value_or(Status::Timeout("not complete after a minute"));
}

}  // namespace mydist
