#include "transport/host_meter.h"

#include <utility>

#include "base/check.h"

namespace mydist {

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
