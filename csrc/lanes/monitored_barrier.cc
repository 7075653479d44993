#include "lanes/monitored_barrier.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "world/process_set.h"
#include "world/watchdog.h"

namespace mydist {
namespace {

// torch gives no tag below zero.
constexpr int32_t kTag = std::numeric_limits<int32_t>::min();
// Of the root beyond its limit, for its outcome to arrive.
constexpr std::chrono::seconds kOutcomeGrace{5};

constexpr const char* kNotWanted = "the barrier is over";

// The first byte of a message; the number of the call follows.
enum class Word : uint8_t {
  kHere = 1,    // Of each member; of the root as well, which then decides.
  kPassed = 2,  // Of the root.
  kFailed = 3,  // Of the root, with the text.
};

struct Note {
  Word word = Word::kHere;
  uint64_t number = 0;
  std::string text;
};

constexpr size_t kNoteBytes = 1 + sizeof(uint64_t);  // Without the text.

Bytes Encode(const Note& note) {
  Bytes bytes(kNoteBytes + note.text.size());
  bytes[0] = static_cast<uint8_t>(note.word);
  std::memcpy(bytes.data() + 1, &note.number, sizeof note.number);
  std::copy(note.text.begin(), note.text.end(), bytes.begin() + kNoteBytes);
  return bytes;
}

Note Decode(const Bytes& bytes) {
  Note note;
  if (bytes.size() < kNoteBytes) return note;
  note.word = static_cast<Word>(bytes[0]);
  std::memcpy(&note.number, bytes.data() + 1, sizeof note.number);
  note.text.assign(bytes.begin() + kNoteBytes, bytes.end());
  return note;
}

std::string Title(const MonitoredCall& call) {
  return "group '" + call.group + "', monitored_barrier " + std::to_string(call.number) + ": ";
}

Status DidNotCome(const MonitoredCall& call, const std::vector<int>& ranks) {
  return Status::Timeout(Title(call) + RankListText(ranks) +
                         " of the group did not call it within " + SecondsText(call.limit));
}

// NoteFrom: the next note of one member that belongs to a call; older ones are dropped, which a
// call that timed out has left. Shared with the receive, which may end after the caller has gone.
class NoteFrom : public std::enable_shared_from_this<NoteFrom> {
 public:
  NoteFrom(LanePosts* posts, int source, uint64_t number)
      : posts_(posts), source_(source), number_(number) {}

  // Asks for it. Once, or again after Await has given one.
  void Ask() MYDIST_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (is_cancelled_) return;
    }
    const LanePosts::Ticket ticket = posts_->Receive(
        source_, kTag,
        [self = shared_from_this()](const Status& status, int, const Bytes& payload) {
          return self->Take(status, payload);
        });
    bool is_late = false;
    {
      MutexLock lock(mutex_);
      // An older note that was there has made a later ticket meanwhile.
      ticket_ = std::max(ticket_, ticket);
      is_late = is_cancelled_;
    }
    if (is_late) posts_->Cancel(ticket, Status::Aborted(kNotWanted));
  }

  // False when it has not come by then. `look` ends what is awaited when a member has given up.
  bool Await(TimePoint deadline, const std::function<void()>& look) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!has_come_ && Now() < deadline) {
      if (changed_.WaitUntil(mutex_, std::min(deadline, Now() + kLookInterval)) || !look) continue;
      mutex_.Unlock();
      look();
      mutex_.Lock();
    }
    return std::exchange(has_come_, false);
  }

  // Or the receive would take a note of the next call.
  void Cancel() MYDIST_EXCLUDES(mutex_) {
    LanePosts::Ticket ticket = 0;
    {
      MutexLock lock(mutex_);
      is_cancelled_ = true;
      ticket = ticket_;
    }
    posts_->Cancel(ticket, Status::Aborted(kNotWanted));
  }

  // After Await.
  Status status() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return status_;
  }
  Note note() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return note_;
  }

 private:
  LanePosts::Follow Take(const Status& status, const Bytes& payload) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Note note = Decode(payload);
    if (status.ok() && note.number < number_) {
      return [self = shared_from_this()] { self->Ask(); };
    }
    status_ = status;
    note_ = std::move(note);
    has_come_ = true;
    changed_.NotifyAll();
    return nullptr;
  }

  LanePosts* const posts_;
  const int source_;
  const uint64_t number_;
  Mutex mutex_;
  CondVar changed_;
  LanePosts::Ticket ticket_ MYDIST_GUARDED_BY(mutex_) = 0;
  bool is_cancelled_ MYDIST_GUARDED_BY(mutex_) = false;
  bool has_come_ MYDIST_GUARDED_BY(mutex_) = false;
  Status status_ MYDIST_GUARDED_BY(mutex_);
  Note note_ MYDIST_GUARDED_BY(mutex_);
};

Status CallRoll(LanePosts& posts, const MonitoredCall& call) {
  std::vector<std::shared_ptr<NoteFrom>> notes(static_cast<size_t>(call.size));
  for (int peer = 1; peer < call.size; ++peer) {
    auto& note = notes[static_cast<size_t>(peer)];
    note = std::make_shared<NoteFrom>(&posts, peer, call.number);
    note->Ask();
    // A member waits longer once it knows that the root decides.
    static_cast<void>(posts.Send(peer, kTag, Encode({Word::kHere, call.number, ""})));
  }
  const TimePoint deadline = Now() + call.limit;
  std::vector<int> missing;
  Status failure;
  for (int peer = 1; peer < call.size; ++peer) {
    NoteFrom& note = *notes[static_cast<size_t>(peer)];
    if (!note.Await(failure.ok() ? deadline : Now(), call.look)) {
      missing.push_back(peer);
      note.Cancel();
    } else if (failure.ok()) {
      failure = note.status();
    }
  }
  Status outcome = failure;
  if (outcome.ok() && !missing.empty()) outcome = DidNotCome(call, missing);
  const Word word = outcome.ok() ? Word::kPassed : Word::kFailed;
  for (int peer = 1; peer < call.size; ++peer) {
    static_cast<void>(posts.Send(peer, kTag, Encode({word, call.number, outcome.message()})));
  }
  return outcome;
}

Status AnswerRoll(LanePosts& posts, const MonitoredCall& call) {
  const auto note = std::make_shared<NoteFrom>(&posts, 0, call.number);
  MYDIST_RETURN_IF_ERROR(posts.Send(0, kTag, Encode({Word::kHere, call.number, ""})));
  TimePoint deadline = Now() + call.limit;
  for (;;) {
    note->Ask();
    if (!note->Await(deadline, call.look)) {
      note->Cancel();
      return DidNotCome(call, {0});
    }
    MYDIST_RETURN_IF_ERROR(note->status());
    const Note got = note->note();
    if (got.word == Word::kPassed) return Status::Ok();
    if (got.word == Word::kFailed) return Status::Timeout(got.text);
    deadline = Now() + call.limit + kOutcomeGrace;
  }
}

}  // namespace

Status MonitoredBarrier(LanePosts& posts, const MonitoredCall& call) {
  if (call.size == 1) return Status::Ok();
  return call.rank == 0 ? CallRoll(posts, call) : AnswerRoll(posts, call);
}

}  // namespace mydist
