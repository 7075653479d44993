#include "timeline/trace_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "conformance/deep.h"
#include "timeline/json_value.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;
using testing::ParseJson;
using testing::ReadFile;
using ::testing::StartsWith;
using testing::TemporaryFolder;

std::string Quoted(size_t size) { return "\"" + std::string(size - 2, 'r') + "\""; }

TEST(TraceFileTest, IsValidAfterEveryAppendOfAnySize) {
  TemporaryFolder folder;
  auto file = TraceFile::Open(folder / "t.json");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(ParseJson(ReadFile(folder / "t.json"))->items.empty());
  std::mt19937 random(3);
  std::vector<std::string> expected;
  for (int round = 0; round < InDeep(300, 300, 60); ++round) {
    TraceRecords records;
    for (size_t i = random() % 5; i > 0; --i) {
      const bool is_long = random() % 4 == 0;
      expected.push_back(Quoted(2 + random() % (is_long ? TraceFile::kMaxRecordBytes - 1 : 200)));
      records.Add(expected.back());
    }
    ASSERT_TRUE(file->Append(records).ok());
    EXPECT_EQ(file->record_count(), expected.size());
    const auto value = ParseJson(ReadFile(folder / "t.json"));
    ASSERT_TRUE(value.has_value()) << "after round " << round;
    ASSERT_EQ(value->items.size(), expected.size());
  }
  ASSERT_TRUE(file->Close().ok());
  const std::string text = ReadFile(folder / "t.json");
  EXPECT_EQ(text.back(), ']');  // Unused spaces are cut off.
  const auto value = ParseJson(text);
  ASSERT_TRUE(value.has_value());
  ASSERT_EQ(value->items.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ("\"" + value->items[i].text + "\"", expected[i]);
  }
}

TEST(TraceFileTest, IsPrivateAndReplacesWhatWasThere) {
  TemporaryFolder folder;
  const std::string path = folder / "t.json";
  std::ofstream(path) << std::string(100000, 'x');
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  auto file = TraceFile::Open(path);
  ASSERT_TRUE(file.ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_TRUE(ParseJson(ReadFile(path)).has_value());
}

TEST(TraceFileTest, UnusablePathsAreNamedWithTheCause) {
  TemporaryFolder folder;
  const auto message = [](const std::string& path) {
    const auto file = TraceFile::Open(path);
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << path;
    return file.status().message();
  };
  std::ofstream(folder / "plain") << "keep";
  ASSERT_EQ(symlink((folder / "plain").c_str(), (folder / "link").c_str()), 0);
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);

  EXPECT_EQ(message(folder.path()),
            "cannot write the timeline to '" + folder.path() +
                "': Is a directory (errno 21); expected a file that this user can create or "
                "overwrite");
  EXPECT_THAT(message(folder / "no/such/t.json"), HasSubstr("No such file or directory (errno 2)"));
  EXPECT_THAT(message(folder / "plain/t.json"), HasSubstr("Not a directory (errno 20)"));
  EXPECT_THAT(message(folder / "link"), HasSubstr("symbolic link, which is not followed"));
  EXPECT_EQ(ReadFile(folder / "plain"), "keep");
  EXPECT_THAT(message(folder / "fifo"), HasSubstr("not a regular file"));
  EXPECT_THAT(message("/dev/full"), HasSubstr("not a regular file"));
  EXPECT_THAT(message("/dev/null"), HasSubstr("not a regular file"));
  EXPECT_THAT(message(""), HasSubstr("No such file or directory"));
  EXPECT_THAT(message(std::string("a\0b", 3)), HasSubstr("the path contains a NUL byte"));
  EXPECT_THAT(message(folder / std::string(300, 'n')), HasSubstr("File name too long"));
  EXPECT_THAT(message("/proc/t.json"), StartsWith("cannot write the timeline to '/proc/t.json'"));
}

TEST(TraceFileTest, TwoWritersOfOneFileAreRefused) {
  TemporaryFolder folder;
  auto first = TraceFile::Open(folder / "t.json");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(first->Append({"1"}).ok());
  const auto second = TraceFile::Open(folder / "t.json");
  EXPECT_THAT(second.status().message(), HasSubstr("another job is writing to it"));
  EXPECT_EQ(ParseJson(ReadFile(folder / "t.json"))->items.size(), 1U);
  ASSERT_TRUE(first->Close().ok());
  EXPECT_TRUE(TraceFile::Open(folder / "t.json").ok());
}

// Makes files larger than a limit fail to grow, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t limit_bytes) {
    previous_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limited{limit_bytes, previous_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int);
};

TEST(TraceFileTest, FullDiskKeepsTheLastValidState) {
  TemporaryFolder folder;
  for (const rlim_t limit_bytes : {4096, 4097, 6000, 8191, 8192, 20000, 20480}) {
    auto file = TraceFile::Open(folder / "t.json");
    ASSERT_TRUE(file.ok());
    Status status;
    {
      FileSizeLimit limit(limit_bytes);
      for (int i = 0; i < 1000 && status.ok(); ++i) {
        status = file->Append({Quoted(100), Quoted(100), Quoted(100)});
      }
    }
    EXPECT_EQ(status.code(), StatusCode::kInternal) << limit_bytes;
    EXPECT_THAT(status.message(), HasSubstr("cannot write to the timeline '" + folder.path()));
    const size_t kept_count = file->record_count();
    EXPECT_GT(kept_count, 30U);
    auto value = ParseJson(ReadFile(folder / "t.json"));
    ASSERT_TRUE(value.has_value()) << limit_bytes;
    EXPECT_EQ(value->items.size(), kept_count);
    // When there is room again, writing goes on.
    ASSERT_TRUE(file->Append({"1", "2"}).ok());
    value = ParseJson(ReadFile(folder / "t.json"));
    ASSERT_TRUE(value.has_value()) << limit_bytes;
    EXPECT_EQ(value->items.size(), kept_count + 2);
  }
}

// Its memory is mapped, and a store behind the end of a file kills.
TEST(TraceFileTest, AFileThatSomebodyCutsOffKillsNobody) {
  TemporaryFolder folder;
  auto file = TraceFile::Open(folder / "t.json");
  ASSERT_TRUE(file.ok());
  TraceRecords records;
  for (int i = 0; i < 10; ++i) records.Add(Quoted(500));
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 5) ASSERT_EQ(truncate((folder / "t.json").c_str(), 0), 0);
    ASSERT_TRUE(file->Append(records).ok()) << i;
  }
}

// A child appends as fast as it can and tells of each append; when it has told of a random number,
// it is killed wherever it is.
TEST(TraceFileTest, IsValidWheneverTheWriterIsKilled) {
  TemporaryFolder folder;
  std::mt19937 random(11);
  size_t most_records = 0;
  for (int round = 0; round < InDeep(200, 60, 20); ++round) {
    const std::string path = folder / "t.json";
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto file = TraceFile::Open(path);
      if (!file.ok()) _exit(1);
      for (size_t i = 0; write(told[1], "x", 1) == 1; ++i) {
        if (!file->Append({Quoted(50 + i % 977), Quoted(20 + i % 13)}).ok()) _exit(2);
      }
      _exit(3);
    }
    close(told[1]);
    const size_t wanted = 1 + random() % 400;
    std::vector<char> bytes(wanted);
    size_t got = 0;
    while (got < wanted) {
      const ssize_t n = read(told[0], bytes.data(), wanted - got);
      ASSERT_GT(n, 0);
      got += static_cast<size_t>(n);
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int outcome = 0;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    close(told[0]);
    ASSERT_TRUE(WIFSIGNALED(outcome)) << "the child ended by itself: " << outcome;
    const auto value = ParseJson(ReadFile(path));
    ASSERT_TRUE(value.has_value()) << "killed in round " << round;
    // What the child told of before its last append is in the file.
    EXPECT_GE(value->items.size() + 2, 2 * wanted);
    most_records = std::max(most_records, value->items.size());
  }
  EXPECT_GT(most_records, 100U);
}

}  // namespace
}  // namespace mydist
