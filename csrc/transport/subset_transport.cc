#include "transport/subset_transport.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace mydist {

namespace {

int IndexOf(std::span<const int> ranks, int rank) {
  MYDIST_CHECK(std::count(ranks.begin(), ranks.end(), rank) == 1);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// The same transfers with the peers' numbers in the whole job.
template <typename Transfer>
void Translate(std::span<const Transfer> transfers, std::span<const int> ranks,
               std::vector<Transfer>* translated) {
  translated->assign(transfers.begin(), transfers.end());
  for (Transfer& transfer : *translated) {
    const auto index = static_cast<size_t>(transfer.peer);
    MYDIST_CHECK(index < ranks.size());
    transfer.peer = ranks[index];
  }
}

}  // namespace

SubsetTransport::SubsetTransport(Transport* base, std::vector<int> ranks)
    : base_(base), ranks_(std::move(ranks)), rank_(IndexOf(ranks_, base->rank())) {}

Status SubsetTransport::Exchange(std::span<const SendTransfer> sends,
                                 std::span<const ReceiveTransfer> receives) {
  Translate(sends, ranks_, &sends_);
  Translate(receives, ranks_, &receives_);
  return base_->Exchange(sends_, receives_);
}

HostMeter::HostMeter(std::unique_ptr<Transport> inner, const std::vector<std::string>& hosts)
    : inner_(std::move(inner)) {
  MYDIST_CHECK(hosts.size() == static_cast<size_t>(inner_->size()));
  const std::string& own = hosts[static_cast<size_t>(inner_->rank())];
  for (const std::string& host : hosts) is_elsewhere_.push_back(host != own);
}

Status HostMeter::Exchange(std::span<const SendTransfer> sends,
                           std::span<const ReceiveTransfer> receives) {
  for (const SendTransfer& send : sends) {
    if (send.bytes == 0 || !is_elsewhere_[static_cast<size_t>(send.peer)]) continue;
    sent_bytes_ += send.bytes;
    ++sent_count_;
  }
  return inner_->Exchange(sends, receives);
}

}  // namespace mydist
