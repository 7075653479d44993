// NeutralSubmission: what a rank that has joined puts into a collective it did not submit: nothing
// where rows are gathered, elements that change nothing where they are reduced. Made by the engine;
// moved to a GPU by its executor.
#pragma once

#include "controller/messages/response.h"
#include "engine/submission.h"
#include "memory/device/stream_collectives.h"
#include "world/process_set.h"

namespace mydist {

// With host memory of its own for input and output, which is dropped with it.
Submission NeutralSubmission(const Agreement& agreement, const ProcessSet& set);

// Input and outputs of such a one lie on the seat's device from now on, where its stream finds
// them. `keep_alive` must be kept until the stream has passed. Errors: those of Device.
Status MoveNeutralTo(const StreamSeat& seat, Submission* submission);

}  // namespace mydist
