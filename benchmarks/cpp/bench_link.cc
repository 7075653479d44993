// bench_link: connections of the parameter server by themselves: an empty round trip, and 64 MiB
// from a worker to a server in frames of 1 MiB, with at most 16 MiB on their way. Both ends are
// threads of this process. A line for each kind of connection; times are the median and the 90th
// percentile.
//   bench_link [THREADS]: of the server; 1 if not given.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "ps/port/link.h"

namespace mydist::bench {
namespace {

using ps::Frame;
using ps::FrameKind;
using ps::Link;

constexpr int kRoundTrips = 20000;
constexpr int kSamples = 15;
constexpr uint64_t kFrameBytes = 1 << 20;
constexpr uint64_t kFrames = 64;
constexpr uint64_t kOnTheirWay = 16;

struct Way {
  const char* name;
  bool shares_memory;
  uint64_t window_bytes;
};

// The number of the last answer.
class Answers {
 public:
  void Put(uint64_t sequence) {
    {
      MutexLock lock(mutex_);
      last_ = sequence;
    }
    changed_.NotifyOne();
  }
  void Await(uint64_t sequence) {
    MutexLock lock(mutex_);
    while (last_ < sequence) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t last_ MYDIST_GUARDED_BY(mutex_) = 0;
};

// A server that reads each payload and answers, and a worker that is connected to it.
class Pair {
 public:
  Pair(const Way& way, int threads)
      : server_io_(ps::Io::Start(threads, "server").value()),
        worker_io_(ps::Io::Start(1, "worker").value()) {
    listener_ = ps::Listener::Open(server_io_, {}, Answering).value();
    worker_ =
        ps::Connect(worker_io_, listener_->address(),
                    {.shares_memory = way.shares_memory, .window_bytes = way.window_bytes},
                    {[this](const Frame& frame, ps::Payload) { answers_.Put(frame.sequence); }, {}})
            .value();
  }

  double RoundTrip() {
    const TimePoint begin = Now();
    worker_->Send({.kind = FrameKind::kPing, .sequence = ++sequence_});
    answers_.Await(sequence_);
    return ToSeconds(Now() - begin);
  }

  // Of 64 MiB.
  double Push(std::span<const uint8_t> bytes) {
    const TimePoint begin = Now();
    for (uint64_t i = 0; i < kFrames; ++i) {
      Frame frame{.kind = FrameKind::kPush, .sequence = ++sequence_, .payload_bytes = kFrameBytes};
      if (sequence_ > kOnTheirWay) answers_.Await(sequence_ - kOnTheirWay);
      const uint64_t place = i % kOnTheirWay * kFrameBytes;
      if (worker_->window().empty()) {
        worker_->Send(frame, bytes.subspan(place, kFrameBytes));
        continue;
      }
      frame.is_in_window = true;
      frame.place = place;
      worker_->Send(frame);
    }
    answers_.Await(sequence_);
    return ToSeconds(Now() - begin);
  }

 private:
  static ps::LinkEvents Answering(std::shared_ptr<Link> link) {
    return {[link](const Frame& frame, ps::Payload) {
              link->Send({.kind = FrameKind::kAnswer, .sequence = frame.sequence});
            },
            {}};
  }

  Answers answers_;
  uint64_t sequence_ = 0;
  std::shared_ptr<ps::Io> server_io_;
  std::shared_ptr<ps::Io> worker_io_;
  std::unique_ptr<ps::Listener> listener_;
  std::shared_ptr<Link> worker_;
};

struct Times {
  double median;
  double slow;  // The 90th percentile.
};

Times Summary(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[seconds.size() * 9 / 10]};
}

void Measure(const Way& way, int threads) {
  Pair pair(way, threads);
  std::vector<double> round_trips(kRoundTrips);
  for (double& each : round_trips) each = pair.RoundTrip();
  const std::vector<uint8_t> bytes(kOnTheirWay * kFrameBytes, 1);
  std::vector<double> pushes(kSamples);
  for (double& each : pushes) each = pair.Push(bytes);
  const Times round_trip = Summary(std::move(round_trips));
  const Times push = Summary(std::move(pushes));
  std::printf("%-14s round trip %5.1f us (%5.1f)   64 MiB %6.2f ms (%6.2f)\n", way.name,
              round_trip.median * 1e6, round_trip.slow * 1e6, push.median * 1e3, push.slow * 1e3);
}

int Run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1 || argc > 2) {
    std::fputs("usage: bench_link [THREADS]\n", stderr);
    return 2;
  }
  for (const Way& way : {Way{"TCP", false, 0}, Way{"Unix socket", true, 0},
                         Way{"shared memory", true, kOnTheirWay * kFrameBytes}}) {
    Measure(way, threads);
  }
  return 0;
}

}  // namespace
}  // namespace mydist::bench

int main(int argc, char** argv) { return mydist::bench::Run(argc, argv); }
