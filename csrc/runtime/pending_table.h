// PendingTable: the tensors this rank has enqueued and not yet completed.
// Owned and used by whoever drives the engine; no lock. Each name is there at most once per process
// set (the HandleTable refuses a second one at the call).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/handle_table.h"
#include "runtime/submission.h"

namespace mydist {

struct PendingTensor {
  Submission submission;
  Handle handle = 0;

  TensorKey key() const { return {submission.request.process_set, submission.request.name}; }
};

class PendingTable {
 public:
  void Add(PendingTensor tensor) {
    TensorKey key = tensor.key();
    const bool added = tensors_.emplace(std::move(key), std::move(tensor)).second;
    MYDIST_CHECK(added);
  }

  // Null when this rank has no such tensor.
  PendingTensor* Find(const TensorKey& key) {
    const auto it = tensors_.find(key);
    return it == tensors_.end() ? nullptr : &it->second;
  }

  // Takes it out; the tensor must be there.
  PendingTensor Take(const TensorKey& key) {
    auto node = tensors_.extract(key);
    MYDIST_CHECK(!node.empty());
    return std::move(node.mapped());
  }

  std::vector<TensorKey> Keys() const {
    std::vector<TensorKey> keys;
    keys.reserve(tensors_.size());
    for (const auto& [key, tensor] : tensors_) keys.push_back(key);
    return keys;
  }

  void Clear() { tensors_.clear(); }
  bool empty() const { return tensors_.empty(); }

 private:
  std::map<TensorKey, PendingTensor> tensors_;
};

}  // namespace mydist
