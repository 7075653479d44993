// CachedMemory: what torch's allocator keeps of a GPU's memory though no tensor uses it. Our own
// buffers are not torch's, so it does not know when they lack it.
#pragma once

namespace mydist {

// From now on, until the process ends, torch is asked to give it back when memory for our buffers
// is short (memory/device/memory_shortage.h). Called once, at import.
void OfferCachedMemory();

}  // namespace mydist
