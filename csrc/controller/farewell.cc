#include "controller/farewell.h"

#include <utility>

#include "world/departure.h"
#include "world/rank_list.h"

namespace mydist {

Farewells::Farewells(int32_t parent, int32_t size, std::vector<std::string> hosts)
    : parent_(parent), hosts_(std::move(hosts)), losses_(static_cast<size_t>(size)) {}

void Farewells::Take(int32_t source, const Farewell& farewell) {
  if (HasLeft(source)) return;
  Status& loss = losses_[static_cast<size_t>(source)];
  loss = PeerHasLeft("rank " + std::to_string(source) + HostListText({&source, 1}, hosts_),
                     farewell.why);
  if (!loss_.ok() || (source != parent_ && farewell.is_told)) return;
  loss_ = loss;
  is_loss_told_ = farewell.is_told;
}

}  // namespace mydist
