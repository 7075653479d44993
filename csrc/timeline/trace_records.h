// TraceRecords: JSON texts one after the other in one piece of memory. Pure data.
// Filled by the TraceFormat, written by the TraceFile; kept between uses for its memory.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace mydist {

class TraceRecords {
 public:
  TraceRecords() = default;
  TraceRecords(std::initializer_list<std::string_view> records) {
    for (const std::string_view record : records) Add(record);
  }

  void Add(std::string_view record) {
    text_ += record;
    End();
  }
  // A record in pieces: appended here, then ended.
  std::string& text() { return text_; }
  void End() { ends_.push_back(text_.size()); }

  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  void Clear() {
    text_.clear();
    ends_.clear();
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;  // Of each record, in text_.
};

}  // namespace mydist
