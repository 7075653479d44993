// StoreExchange: the rounds of a start over torch's store, in which each member puts its bytes
// under a key of its own and reads those of the others.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "transport/factory.h"

namespace mydist {

// `store` has a prefix of the group's own. A group that was destroyed may come again under the same
// prefix, where its keys still are, also with another size. So the members of each size count how
// often they have met there. The errors of the store become kInternal.
inline BootstrapExchange StoreExchange(c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
  auto meeting = std::make_shared<std::string>();
  auto round = std::make_shared<int>(0);
  return [=](const Bytes& mine) -> Result<std::vector<Bytes>> {
    std::vector<Bytes> all;
    int awaited = rank;
    try {
      if (meeting->empty()) {
        const std::string group = "mydist/" + std::to_string(size) + "/";
        *meeting = group + std::to_string((store->add(group + "members", 1) - 1) / size);
      }
      const std::string prefix = *meeting + "/" + std::to_string((*round)++) + "/";
      store->set(prefix + std::to_string(rank), mine);
      for (int other = 0; other < size; ++other) {
        awaited = other;
        all.push_back(other == rank ? mine : store->get(prefix + std::to_string(other)));
      }
    } catch (const std::exception& error) {
      const std::string text = error.what();  // Behind the first line is where torch raised it.
      const std::string whom =
          awaited == rank ? "" : " for rank " + std::to_string(awaited) + " of the group";
      return Status::Internal("the group's store gives no answer" + whom + ": " +
                              text.substr(0, text.find('\n')));
    }
    return all;
  };
}

}  // namespace mydist
