#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>
#include <map>

#include "contender.h"

namespace mydist::bench {
namespace {

// Gloo's pairs connect through keys and values; every rank writes one value and reads them all, so
// one exchange is enough.
class ExchangeStore final : public gloo::rendezvous::Store {
 public:
  explicit ExchangeStore(Ranks* ranks) : ranks_(ranks) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const Bytes mine(data.begin(), data.end());
    const auto keys = ranks_->Exchange(Bytes(key.begin(), key.end()));
    const auto values = ranks_->Exchange(mine);
    for (size_t i = 0; i < keys->size(); ++i) {
      const Bytes& k = (*keys)[i];
      const Bytes& v = (*values)[i];
      values_[std::string(k.begin(), k.end())] = std::vector<char>(v.begin(), v.end());
    }
  }
  std::vector<char> get(const std::string& key) override { return values_.at(key); }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  Ranks* const ranks_;
  std::map<std::string, std::vector<char>> values_;
};

class Gloo final : public Contender {
 public:
  Gloo(Ranks* ranks, int64_t bytes)
      : context_(std::make_shared<gloo::rendezvous::Context>(ranks->rank(), ranks->size())),
        memory_(PrivateMemory(bytes)) {
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    ExchangeStore store(ranks);
    context_->connectFullMesh(store, device);
  }

  std::string name() const override { return "gloo"; }
  float* memory() override { return memory_.get(); }
  Status Allreduce(float* data, int64_t count) override {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, static_cast<size_t>(count));
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
    return Try([&] { gloo::allreduce(options); });
  }
  Status Barrier() override {
    gloo::BarrierOptions options(context_);
    return Try([&] { gloo::barrier(options); });
  }
  bool IsSlow() const override { return true; }

 private:
  template <typename Call>
  static Status Try(Call call) {
    try {
      call();
    } catch (const std::exception& error) {
      return Status::PeerLost(std::string("Gloo: ") + error.what());
    }
    return Status::Ok();
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::shared_ptr<float> memory_;
};

}  // namespace

Entry MakeGloo(Ranks* ranks, int64_t bytes) {
  if (ranks->size() < 2) return {"gloo", nullptr, "it needs at least 2 ranks"};
  return {"gloo", std::make_unique<Gloo>(ranks, bytes), ""};
}

}  // namespace mydist::bench
