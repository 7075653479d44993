// MemoryShortage: what others in the process give back when a GPU has no memory left. Torch keeps
// what its tensors do not use any more, of which the driver knows nothing. One function for the
// process, set by the torch binding as long as that is there; devices ask for it when an allocation
// has failed. Any thread; without a lock, as it may wait for the GPU and a fork may come in
// between.
#pragma once

#include "base/export.h"

namespace mydist {

// Called with the index of the GPU, which is current. The caller does not hold the GIL.
using GiveBackMemory = void (*)(int device) noexcept;

// Null: nobody is asked. Who is being asked may go on for a while after another one is set.
MYDIST_EXPORT void OnMemoryShortage(GiveBackMemory give_back);

// Whoever asks from inside such a function asks nobody.
MYDIST_EXPORT void AskForMemory(int device);

}  // namespace mydist
