// Progress of long work, for people: one redrawn line on a terminal, now and then a line of text elsewhere.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron {

/// How progress is shown.
struct ProgressStyle {
  enum class Kind { silent, lines, redrawn };
  Kind kind = Kind::lines;
  bool color = false;
  int width = 80;      ///< columns of the terminal
  int height = 24;     ///< and its lines
  int terminal = -1;   ///< the descriptor of one that is asked for its size before every drawing; -1: none
  double delay = 0.5;  ///< seconds without any output: short work shows nothing
  double pause = 5;    ///< of `lines`: seconds between two of them at least, unless a tenth of the work was done
};

/// Takes over the size of the style's terminal, where it tells one.
inline void take_size(ProgressStyle& style) {
  winsize size{};
  if (style.terminal < 0 || ::ioctl(style.terminal, TIOCGWINSZ, &size) != 0) return;
  if (size.ws_col > 0) style.width = size.ws_col;
  if (size.ws_row > 0) style.height = size.ws_row;
}

/// The style for a file descriptor: redrawn on a terminal that can (TERM is not `dumb`), plain lines elsewhere, nothing
/// when quiet. No color where NO_COLOR is set and not empty (no-color.org).
inline ProgressStyle progress_style(int descriptor, bool quiet = false) {
  ProgressStyle style;
  if (quiet) style.kind = ProgressStyle::Kind::silent;
  if (quiet || ::isatty(descriptor) == 0) return style;
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb" || *terminal == '\0') return style;
  style.kind = ProgressStyle::Kind::redrawn;
  const char* no_color = std::getenv("NO_COLOR");
  style.color = no_color == nullptr || *no_color == '\0';
  style.terminal = descriptor;
  take_size(style);
  return style;
}

/// Shows how far a piece of work is. Any thread may call it.
///
///     train 120/400 [=======>               ] 30%  loss 2.91  14.2 k tokens/s  1 min 20 s left
///
/// A terminal may have lines above that one, which are redrawn with it: see lines_above().
class Progress {
 public:
  using Write = std::function<void(std::string_view)>;
  using Clock = std::function<double()>;
  /// Lines of at most `width` columns and no escape sequences but colors, where these are asked for.
  using Lines = std::function<std::vector<std::string>(int width, bool color)>;

  /// @param work   opens every line: `train`
  /// @param write  gets the text
  /// @param clock  seconds; only differences count
  Progress(std::string work, const ProgressStyle& style, Write write, Clock clock = steady_seconds)
      : work_(std::move(work)), style_(style), write_(std::move(write)), clock_(std::move(clock)), start_(clock_()) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    try {
      finish();
    } catch (const std::bad_alloc&) {  // the bar stays
    }
  }

  /// What a terminal shows above the bar from here on, as many of the lines as it has place for. Called when it is
  /// drawn.
  void lines_above(Lines lines) {
    const std::scoped_lock lock(mutex_);
    above_ = std::move(lines);
  }

  /// Tells the state. Draws at most ten times a second; the last call before finish() may not be seen.
  /// @param share   of the whole, from 0 to 1; negative: unknown, then there is no bar and no time left
  /// @param place   `120/400`, or what is being done
  /// @param facts   the most important first: on a narrow terminal the last ones go
  void update(double share, std::string_view place, const std::vector<std::string>& facts = {}) {
    const std::scoped_lock lock(mutex_);
    if (style_.kind == ProgressStyle::Kind::silent || finished_) return;
    const double now = clock_();
    const double elapsed = now - start_;
    if (elapsed < style_.delay) return;
    share = std::isfinite(share) ? std::min(share, 1.0) : -1.0;
    const bool redrawn = style_.kind == ProgressStyle::Kind::redrawn;
    if (shown_ && redrawn && now - last_ < 0.1) return;
    if (shown_ && !redrawn && now - last_ < style_.pause && !(tenth(share) > last_tenth_ && now - last_ >= 1)) return;
    std::vector<std::string> all = facts;
    if (share > 0) all.push_back(format_seconds({elapsed * (1 - share) / share}) + " left");
    if (share < 0) all.push_back(format_seconds({elapsed}));
    if (redrawn) {
      take_size(style_);
      std::string picture = begin_of_picture();
      std::size_t lines = 0;
      if (above_)
        for (const std::string& line : above_(std::max(style_.width - 1, 1), style_.color)) {
          if (static_cast<int>(lines) + 2 > style_.height) break;
          picture += line + "\x1b[K\n";
          ++lines;
        }
      // Fewer lines than before leave some below.
      write_(picture + redrawn_line(share, place, all) + (drawn_ > lines ? "\x1b[J" : "\x1b[K"));
      drawn_ = lines;
    } else {
      write_(plain_line(share, place, all) + "\n");
    }
    shown_ = true;
    last_ = now;
    last_tenth_ = tenth(share);
  }

  /// Writes a whole line without disturbing the bar, at once. Silent when quiet.
  void say(std::string_view line) {
    const std::scoped_lock lock(mutex_);
    if (style_.kind == ProgressStyle::Kind::silent) return;
    erase();
    write_(std::string(line) + "\n");
  }

  /// Removes the bar; nothing is shown after that.
  void finish() {
    const std::scoped_lock lock(mutex_);
    if (!finished_) erase();
    finished_ = true;
  }

 private:
  static int tenth(double share) { return static_cast<int>(std::floor(share * 10 + 1e-9)); }

  void erase() {
    if (shown_ && style_.kind == ProgressStyle::Kind::redrawn)
      write_(begin_of_picture() + (drawn_ > 0 ? "\x1b[J" : "\x1b[K"));
    shown_ = false;
    drawn_ = 0;
  }
  // To the first column of the first line that was drawn.
  [[nodiscard]] std::string begin_of_picture() const {
    return drawn_ > 0 ? "\r\x1b[" + std::to_string(drawn_) + "A" : "\r";
  }

  [[nodiscard]] static std::string percent(double share) {
    return std::to_string(static_cast<int>(std::floor(share * 100 + 1e-9))) + "%";
  }

  [[nodiscard]] std::string plain_line(double share, std::string_view place,
                                       const std::vector<std::string>& facts) const {
    std::string line = work_ + " " + std::string(place);
    if (share >= 0) line += ", " + percent(share);
    for (const std::string& fact : facts) line += ", " + fact;
    return line;
  }

  // Never wider than the terminal less one column: a full last column wraps on some.
  [[nodiscard]] std::string redrawn_line(double share, std::string_view place,
                                         const std::vector<std::string>& facts) const {
    const auto room = static_cast<std::size_t>(std::max(style_.width - 1, 1));
    const std::string head = work_ + " " + std::string(place);
    if (head.size() >= room) return head.substr(0, room);
    std::string tail;
    if (share >= 0) tail = " " + percent(share);
    for (const std::string& fact : facts) {
      if (head.size() + tail.size() + 2 + fact.size() > room) break;
      tail += "  " + fact;
    }
    if (head.size() + tail.size() > room) tail.clear();
    constexpr std::size_t least_bar = 10;
    constexpr std::size_t most_bar = 40;
    const std::size_t left = room - head.size() - tail.size();
    if (share < 0 || left < least_bar + 3) return head + tail;
    const std::size_t inside = std::min(left - 3, most_bar);
    auto done = static_cast<std::size_t>(share * static_cast<double>(inside));
    std::string bar(done, '=');
    if (done < inside) bar += '>';
    const std::string rest(inside - bar.size(), ' ');
    return head + " [" + (style_.color ? "\x1b[32m" + bar + "\x1b[0m" : bar) + rest + "]" + tail;
  }

  std::string work_;
  ProgressStyle style_;
  Write write_;
  Clock clock_;
  Lines above_;
  std::mutex mutex_;
  double start_;
  double last_ = 0;
  int last_tenth_ = 0;
  std::size_t drawn_ = 0;  // lines above the bar
  bool shown_ = false;
  bool finished_ = false;
};

}  // namespace galvatron
