// Whistle: how one rank tells another something that neither a control plane nor a transport
// carries; a named pipe, as the other may be another process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace mydist::conformance {

class Whistle {
 public:
  Whistle() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = std::string(folder_.data()) + "/pipe";
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    pipe_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(pipe_, 0);
  }
  ~Whistle() {
    close(pipe_);
    std::filesystem::remove_all(folder_.data());
  }
  Whistle(const Whistle&) = delete;
  Whistle& operator=(const Whistle&) = delete;

  const std::string& path() const { return path_; }

  // Waits for it, within reason.
  bool IsHeard() const {
    constexpr int kMilliseconds = 30'000;
    struct pollfd heard {
      .fd = pipe_, .events = POLLIN, .revents = 0
    };
    return poll(&heard, 1, kMilliseconds) == 1 && (heard.revents & POLLIN) != 0;
  }

  static void Blow(const std::string& path) {
    const int pipe = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(write(pipe, "!", 1), 1);
    close(pipe);
  }

 private:
  std::array<char, 32> folder_{"/tmp/mydist-whistle-XXXXXX"};
  std::string path_;
  int pipe_ = -1;
};

}  // namespace mydist::conformance
