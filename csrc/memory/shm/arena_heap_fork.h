// ForkedHeaps: the heaps of this process, so that fork() gives a child memory of its own in place
// of what it would otherwise share with its parent and the other ranks, such as the gradients. A
// child that trains or zeroes a copy of the model must not write into the parent's. Any thread;
// registers itself with the C library when the first heap is added.
#pragma once

namespace mydist::shm {

class ArenaHeap;

namespace forked_heaps {

// Until it is removed, which does nothing for one that is not there.
void Add(ArenaHeap* heap);
void Remove(ArenaHeap* heap);

}  // namespace forked_heaps
}  // namespace mydist::shm
