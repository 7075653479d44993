#include <unistd.h>

#include <utility>

#include "ps/port/link.h"
#include "ps/port/reception.h"

namespace mydist::ps {
namespace {

class PortListener final : public Listener {
 public:
  PortListener(std::shared_ptr<Io> io, Address address, std::shared_ptr<Reception> reception)
      : io_(std::move(io)), address_(std::move(address)), reception_(std::move(reception)) {}
  ~PortListener() override {
    if (getpid() != process_) return;  // A forked child, without the threads of the Io.
    reception_->End(Status::Ok());
    reception_->AwaitEnd();
  }

  const Address& address() const override { return address_; }

 private:
  const pid_t process_ = getpid();
  const std::shared_ptr<Io> io_;  // Outlives the reception.
  const Address address_;
  const std::shared_ptr<Reception> reception_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Open(std::shared_ptr<Io> io,
                                                 const ListenOptions& options, OnLink on_link) {
  auto reception =
      std::make_shared<Reception>(static_cast<IoThreads&>(*io), options, std::move(on_link));
  Address address;
  MYDIST_RETURN_IF_ERROR(reception->Listen(address));
  reception->Start();
  return std::unique_ptr<Listener>(
      std::make_unique<PortListener>(std::move(io), std::move(address), std::move(reception)));
}

}  // namespace mydist::ps
