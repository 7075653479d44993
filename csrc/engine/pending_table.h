// PendingTable: the tensors this rank has enqueued and not yet completed.
// Owned and used by whoever drives the engine; no lock. Each name is there at most once per process
// set (the HandleTable refuses a second one at the call).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/handle_table.h"
#include "engine/submission.h"

namespace mydist {

struct PendingTensor {
  Submission submission;
  Handle handle = 0;

  TensorKeyView key() const { return {submission.request.process_set, submission.request.name}; }
};

class PendingTable {
 public:
  void Add(PendingTensor tensor) {
    TensorKey key(tensor.key());
    const bool added = tensors_.emplace(std::move(key), std::move(tensor)).second;
    MYDIST_CHECK(added);
  }

  // Null when this rank has no such tensor.
  PendingTensor* Find(TensorKeyView key) {
    const auto it = tensors_.find(key);
    return it == tensors_.end() ? nullptr : &it->second;
  }

  // Lets go of it and of its memory; the tensor must be there, and the name be somebody else's.
  Handle Remove(TensorKeyView key) {
    const auto it = tensors_.find(key);
    MYDIST_CHECK(it != tensors_.end());
    const Handle handle = it->second.handle;
    tensors_.erase(it);
    return handle;
  }

  std::vector<TensorKey> Keys() const {
    std::vector<TensorKey> keys;
    keys.reserve(tensors_.size());
    for (const auto& [key, tensor] : tensors_) keys.push_back(key);
    return keys;
  }

  std::vector<TensorKey> KeysOf(Handle handle) const {
    std::vector<TensorKey> keys;
    for (const auto& [key, tensor] : tensors_) {
      if (tensor.handle == handle) keys.push_back(key);
    }
    return keys;
  }

  void Clear() { tensors_.clear(); }
  bool empty() const { return tensors_.empty(); }

 private:
  std::map<TensorKey, PendingTensor, TensorKeyLess> tensors_;
};

}  // namespace mydist
