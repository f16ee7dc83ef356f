// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

namespace hetsched::test {

/// A small scheduling problem: one stage per rank, split backwards, identical microbatches. Times in any one unit.
/// Transfers over boundary i take a[i] (activation) or g[i] (gradient), first come, first served, and occupy their direction of
/// the link for all that time, or less of it. A forward adds 1 to what its rank holds, backward_input takes off 1 - held,
/// backward_weight the rest; no prefix of a rank's order may hold more than its cap.
struct judge_instance {
  std::vector<double> f, b, w;                           ///< S each: forward, backward_input, backward_weight
  std::vector<double> a, g;                              ///< S - 1 each
  std::vector<double> caps;                              ///< S, each >= 1
  std::vector<double> a_occupied = {}, g_occupied = {};  ///< S - 1 each, or empty: as a and g
  double held = 1;
  int microbatches = 0;

  [[nodiscard]] int ranks() const { return static_cast<int>(f.size()); }
  /// From when an activation or gradient leaves its link to when it arrives.
  [[nodiscard]] double a_behind(std::size_t i) const { return a_occupied.empty() ? 0 : a[i] - a_occupied[i]; }
  [[nodiscard]] double g_behind(std::size_t i) const { return g_occupied.empty() ? 0 : g[i] - g_occupied[i]; }
};

/// Makes transfers of a random half of the boundaries occupy them for quarters of their time only, or none.
inline void let_transfers_overlap(random_source& random, judge_instance& p) {
  const auto parts = [&](const std::vector<double>& times) {
    std::vector<double> occupied;
    for (const double t : times) occupied.push_back(random.integer(0, 1) == 0 ? t : t * 0.25 * random.integer(0, 3));
    return occupied;
  };
  p.a_occupied = parts(p.a);
  p.g_occupied = parts(p.g);
}

/// One word over F, B, W per rank: what the rank does, in order. The k-th letter of a kind is that of microbatch k.
using judge_words = std::vector<std::string>;

/// The best makespan and an order of every rank that has it. If not proved, `lower_bound` <= optimum of the instance <=
/// `optimum`.
struct verdict {
  double optimum = std::numeric_limits<double>::infinity();
  bool proved = false;
  double lower_bound = 0;
  judge_words words;
  long nodes = 0;  ///< states generated
};

/// As C++ that builds it again.
inline std::string text(const judge_instance& p) {
  std::ostringstream out;
  out.precision(17);
  const auto list = [&](const char* name, const std::vector<double>& values) {
    out << "." << name << " = {";
    for (std::size_t i = 0; i < values.size(); ++i) out << (i > 0 ? ", " : "") << values[i];
    out << "}, ";
  };
  out << "judge_instance{";
  list("f", p.f), list("b", p.b), list("w", p.w), list("a", p.a), list("g", p.g), list("caps", p.caps),
      list("a_occupied", p.a_occupied), list("g_occupied", p.g_occupied);
  out << ".held = " << p.held << ", .microbatches = " << p.microbatches << "}";
  return out.str();
}

inline std::string text(const judge_words& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

inline void validate(const judge_instance& p) {
  const auto s = p.f.size();
  if (s == 0 || p.microbatches < 1 || p.b.size() != s || p.w.size() != s || p.a.size() != s - 1 || p.g.size() != s - 1 ||
      p.caps.size() != s || std::any_of(p.caps.begin(), p.caps.end(), [](double cap) { return cap < 1; }) || p.held < 0 ||
      p.held > 1)
    throw input_error("not an instance for the judge: " + text(p));
}

/// Rounding allowance where held activations are compared with a cap.
inline constexpr double judge_slack = 1e-9;

/// Makespan of given orders, every action as early as possible; infinity if they deadlock, exceed a cap or are incomplete.
/// Written apart from the search below, which it checks. O(S^2 M).
inline double replay(const judge_instance& p, const judge_words& words) {
  const auto s = p.f.size();
  const auto m = static_cast<std::size_t>(p.microbatches);
  constexpr double never = std::numeric_limits<double>::infinity();
  if (words.size() != s) return never;
  std::vector<std::vector<double>> activation(s, std::vector<double>(m, never)), gradient = activation, input = activation;
  std::vector<std::size_t> next(s, 0), forwards(s, 0), inputs(s, 0), weights(s, 0);
  std::vector<double> free(s, 0);
  std::fill(activation[0].begin(), activation[0].end(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = 0; i < s; ++i)
      while (next[i] < words[i].size()) {
        const char kind = words[i][next[i]];
        double ready = 0, takes = 0;
        if (kind == 'F') {
          if (forwards[i] == m) return never;
          ready = activation[i][forwards[i]], takes = p.f[i];
        } else if (kind == 'B') {
          if (inputs[i] == forwards[i]) return never;
          ready = gradient[i][inputs[i]], takes = p.b[i];
        } else {
          if (weights[i] == inputs[i]) return never;
          takes = p.w[i];
        }
        if (ready == never) break;
        const double end = std::max(free[i], ready) + takes;
        if (kind == 'F') {
          const auto k = forwards[i]++;
          if (i + 1 < s)
            activation[i + 1][k] = std::max(end, k > 0 ? activation[i + 1][k - 1] - p.a_behind(i) : 0.0) + p.a[i];
          else
            gradient[i][k] = end;
        } else if (kind == 'B') {
          const auto k = inputs[i]++;
          if (i > 0) gradient[i - 1][k] = std::max(end, k > 0 ? gradient[i - 1][k - 1] - p.g_behind(i - 1) : 0.0) + p.g[i - 1];
        } else {
          ++weights[i];
        }
        const double holds = static_cast<double>(forwards[i]) - (1 - p.held) * static_cast<double>(inputs[i]) -
                             p.held * static_cast<double>(weights[i]);
        if (holds > p.caps[i] + judge_slack) return never;
        free[i] = end;
        ++next[i];
        moved = true;
      }
  }
  if (std::any_of(weights.begin(), weights.end(), [&](std::size_t n) { return n != m; })) return never;
  return *std::max_element(free.begin(), free.end());
}

/// Branch and bound over partial schedules, level by level (a level has equally many actions done).
///
/// Why it is exact. Microbatches are alike, so each rank may as well serve them in order, and a rank's order is a word over F,
/// B, W. A partial schedule is then worth what its counts, the ranks' free times, the arrivals not yet used and the links' free
/// times are: of two with equal counts, one whose times are all no later can follow every continuation of the other.
/// Branching (Giffler and Thompson 1960): let c be the earliest end of any action that can come next, and r its rank. Every
/// action still to come, on any rank, ends at c or later. If the next action of r starts at c or later, the action that ends at c
/// can be put before it and delays nothing; memory permits it, for the action may come next as far as the cap goes, a backward
/// only frees memory, and a forward moved to the front passes no other forward, so nothing after it holds more than it does. So
/// only actions of r that start before c need be tried.
/// A weight gradient W that takes time and starts when a forward or backward X could have started in its stead is not followed by
/// X, weight gradients aside: X, W in this order ends when W, X does, with X earlier. The state remembers which X may not come
/// next (`barred`); it can be replaced only by a state that bars no more.
/// Both rules change a continuation for one whose sum of F and B end times, then of W end times, is no greater (for the second:
/// less), and neither brings a barred action to the front; so among the best continuations one with the least sums obeys both.
/// States whose lower bound does not beat the best schedule found are dropped. A level may be cut to its most promising
/// states; the pass is a proof if none of those cut could have been better.
class judge {
 public:
  static constexpr int max_ranks = 8;
  static constexpr int max_microbatches = 16;

  explicit judge(const judge_instance& p) : p_(p), s_(p.ranks()), m_(p.microbatches) {
    validate(p);
    if (s_ > max_ranks || m_ > max_microbatches) throw input_error("too large for the judge: " + text(p));
    prepare();
  }

  /// `hint`: a makespan known to be possible, to prune with; if it is not, nothing is found and nothing proved but that it is a
  /// lower bound. Gives up after node_limit states.
  verdict solve(double hint, long node_limit, std::size_t width) {
    verdict result;
    node_limit_ = node_limit;
    hint_ = hint;
    for (;; width = width < 100000 ? width * 16 : std::numeric_limits<std::size_t>::max()) {
      const double open = pass(width);
      result.lower_bound = std::max(result.lower_bound, std::min({open, best_, hint_}));
      if (result.lower_bound >= std::min(best_, hint_) - tolerance() || nodes_ >= node_limit_) break;
    }
    result.optimum = best_;
    result.proved = !words_.empty() && result.lower_bound >= best_ - tolerance();
    result.words = words_;
    result.nodes = nodes_;
    return result;
  }

 private:
  enum kind : int { forward, input, weight };
  template <class T>
  using per_rank = std::array<T, max_ranks>;
  template <class T>
  using per_microbatch = per_rank<std::array<T, max_microbatches>>;

  struct state {
    std::array<per_rank<std::int8_t>, 3> done{};
    per_rank<std::uint8_t> barred{};  ///< bit `forward` or `input`: may not be the rank's next action other than a weight
    int parent = -1;
    std::int8_t rank = 0, kind = 0;  ///< the action done last
    bool dominated = false;
    double bound = 0, spread = 0;  ///< of the makespan; sum of the ranks' bounds
    std::uint64_t key = 0;         ///< hash of `done`
    int same_key = -1;
    per_rank<double> free{};
    per_microbatch<double> activation{}, gradient{};      ///< arrivals at a rank, of those it has not used
    per_rank<double> activation_link{}, gradient_link{};  ///< when the link to the next or previous rank has room
  };
  struct step {
    int parent;
    std::int8_t rank, kind;
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static int up(double x) { return std::max(0, static_cast<int>(__builtin_ceil(x - judge_slack))); }
  [[nodiscard]] double tolerance() const { return 1e-9 * root_scale_; }
  [[nodiscard]] double cutoff() const { return std::min(best_ - tolerance(), hint_ + tolerance()); }

  /// Costs in fixed arrays; what a forward's memory needs done first; least times from an action's end to the end of all.
  void prepare() {
    random_source random(1);
    for (auto& row : hash_)
      for (auto& h : row) h = random();
    for (int r = 0; r < s_; ++r) {
      const auto i = at(r);
      takes_[forward][i] = p_.f[i], takes_[input][i] = p_.b[i], takes_[weight][i] = p_.w[i];
      root_scale_ += m_ * (p_.f[i] + p_.b[i] + p_.w[i]);
      if (r + 1 < s_) {
        a_behind_[i] = p_.a_behind(i), g_behind_[i + 1] = p_.g_behind(i);
        a_[i] = p_.a[i] - a_behind_[i], g_[i + 1] = p_.g[i] - g_behind_[i + 1];
      }
      for (int k = 0; k < m_; ++k) {
        // Forward k, 0-based, makes it k + 1 of them; at most all, and at most k, backwards have run before.
        const double over = k + 1 - p_.caps[i];
        needs_[input][i][at(k)] = up(over);
        needs_[weight][i][at(k)] = p_.held > 0 ? up((over - (1 - p_.held) * k) / p_.held) : 0;
      }
    }
    auto& [qf, qb, qw] = tail_;
    for (int k = m_ - 1; k >= 0; --k) {
      const auto n = at(k);
      const double after = m_ - 1 - k;
      for (int r = 0; r < s_; ++r) {
        const auto i = at(r);
        const double f = takes_[forward][i], b = takes_[input][i], w = takes_[weight][i];
        qw[i][n] = after * w;
        qb[i][n] = after * b + (after + 1) * w;
        for (int later = k + 1; later < m_; ++later) {
          if (needs_[weight][i][at(later)] > k) qw[i][n] = std::max(qw[i][n], f + qf[i][at(later)]);
          if (needs_[input][i][at(later)] > k) qb[i][n] = std::max(qb[i][n], f + qf[i][at(later)]);
        }
        qb[i][n] = std::max(qb[i][n], w + qw[i][n]);
        if (k + 1 < m_) qb[i][n] = std::max(qb[i][n], b + qb[i][n + 1]);
        if (r > 0) {
          for (int later = k; later < m_; ++later)
            qb[i][n] = std::max(qb[i][n], (later - k + 1) * g_[i] + g_behind_[i] + takes_[input][i - 1] + qb[i - 1][at(later)]);
        }
      }
      for (int r = s_ - 1; r >= 0; --r) {
        const auto i = at(r);
        const double f = takes_[forward][i], b = takes_[input][i], w = takes_[weight][i];
        qf[i][n] = std::max(after * f + (after + 1) * (b + w), b + qb[i][n]);
        if (k + 1 < m_) qf[i][n] = std::max(qf[i][n], f + qf[i][n + 1]);
        if (r + 1 < s_) {
          for (int later = k; later < m_; ++later)
            qf[i][n] = std::max(qf[i][n], (later - k + 1) * a_[i] + a_behind_[i] + takes_[forward][i + 1] + qf[i + 1][at(later)]);
        }
      }
    }
  }

  [[nodiscard]] bool fits(const state& x, std::size_t i) const {
    const double holds = x.done[forward][i] - (1 - p_.held) * x.done[input][i] - p_.held * x.done[weight][i];
    return holds + 1 <= p_.caps[i] + judge_slack;
  }

  /// Whether the rank can do such an action next.
  [[nodiscard]] bool possible(const state& x, int r, int what) const {
    const auto i = at(r);
    const auto& d = x.done;
    if (what == forward) return d[forward][i] < (r == 0 ? m_ : d[forward][i - 1]) && fits(x, i);
    if (what == input) return d[input][i] < (r + 1 == s_ ? d[forward][i] : d[input][i + 1]);
    return d[weight][i] < d[input][i];
  }

  [[nodiscard]] double ready(const state& x, int r, int what) const {
    const auto i = at(r);
    if (what == forward && r > 0) return std::max(x.free[i], x.activation[i][at(x.done[forward][i])]);
    if (what == input && r + 1 < s_) return std::max(x.free[i], x.gradient[i][at(x.done[input][i])]);
    return x.free[i];
  }

  void apply(state& x, int r, int what) const {
    const auto i = at(r);
    const double end = ready(x, r, what) + takes_[at(what)][i];
    const auto k = at(x.done[at(what)][i]++);
    x.free[i] = end;
    x.rank = static_cast<std::int8_t>(r), x.kind = static_cast<std::int8_t>(what);
    if (what == forward && r + 1 < s_) {
      x.activation_link[i] = std::max(end, x.activation_link[i]) + a_[i];
      x.activation[i + 1][k] = x.activation_link[i] + a_behind_[i];
    }
    if (what == input && r > 0) {
      x.gradient_link[i] = std::max(end, x.gradient_link[i]) + g_[i];
      x.gradient[i - 1][k] = x.gradient_link[i] + g_behind_[i];
    }
  }

  /// Sets the state's bound, and raises its times to what they can only be: the values change, their meaning does not.
  void estimate(state& x) const {
    auto& [nf, nb, nw] = x.done;
    std::array<per_microbatch<double>, 3> earliest;
    auto& [ef, eb, ew] = earliest;
    per_rank<double> al = x.activation_link, gl = x.gradient_link;
    for (int k = 0; k < m_; ++k) {
      const auto n = at(k);
      for (int r = 0; r < s_; ++r) {
        const auto i = at(r);
        if (k < nf[i]) continue;
        const double f = takes_[forward][i], b = takes_[input][i], w = takes_[weight][i];
        const int first_b = needs_[input][i][n], first_w = needs_[weight][i][n];
        double t = x.free[i] + (k - nf[i]) * f + std::max(0, first_b - nb[i]) * b + std::max(0, first_w - nw[i]) * w;
        if (r > 0) {
          if (k >= nf[i - 1]) al[i - 1] = std::max(al[i - 1], ef[i - 1][n] + takes_[forward][i - 1]) + a_[i - 1];
          t = std::max(t, k >= nf[i - 1] ? al[i - 1] + a_behind_[i - 1] : x.activation[i][n]);
        }
        if (k > nf[i]) t = std::max(t, ef[i][n - 1] + f);
        if (first_b > nb[i]) t = std::max(t, eb[i][at(first_b - 1)] + b);
        if (first_w > nw[i]) t = std::max(t, ew[i][at(first_w - 1)] + w);
        ef[i][n] = t;
      }
      for (int r = s_ - 1; r >= 0; --r) {
        const auto i = at(r);
        const double f = takes_[forward][i], b = takes_[input][i], w = takes_[weight][i];
        if (k >= nb[i]) {
          const int first_w = k < nf[i] ? 0 : needs_[weight][i][n];
          double t = x.free[i] + std::max(0, k + 1 - nf[i]) * f + (k - nb[i]) * b + std::max(0, first_w - nw[i]) * w;
          if (k >= nf[i]) t = std::max(t, ef[i][n] + f);
          if (k > nb[i]) t = std::max(t, eb[i][n - 1] + b);
          if (r + 1 < s_) {
            if (k >= nb[i + 1]) gl[i + 1] = std::max(gl[i + 1], eb[i + 1][n] + takes_[input][i + 1]) + g_[i + 1];
            t = std::max(t, k >= nb[i + 1] ? gl[i + 1] + g_behind_[i + 1] : x.gradient[i][n]);
          }
          eb[i][n] = t;
        }
        if (k >= nw[i]) {
          double t = x.free[i] + std::max(0, k + 1 - nf[i]) * f + std::max(0, k + 1 - nb[i]) * b + (k - nw[i]) * w;
          if (k >= nb[i]) t = std::max(t, eb[i][n] + b);
          if (k > nw[i]) t = std::max(t, ew[i][n - 1] + w);
          ew[i][n] = t;
        }
      }
    }
    x.spread = 0;
    for (int r = 0; r < s_; ++r) {
      const double bound = one_rank(x, r, earliest);
      x.bound = std::max(x.bound, bound);
      x.spread += bound;
    }
    for (int r = 0; r < s_; ++r) {
      const auto i = at(r);
      if (nw[i] == nb[i]) {
        double next = std::numeric_limits<double>::infinity();
        if (nf[i] < m_) next = ef[i][at(nf[i])];
        if (nb[i] < m_) next = std::min(next, eb[i][at(nb[i])]);
        if (nb[i] < m_) x.free[i] = std::max(x.free[i], next);
      }
      if (r > 0) {
        for (int k = nf[i]; k < nf[i - 1]; ++k) x.activation[i][at(k)] = ef[i][at(k)];
        if (nb[i] < m_) x.gradient_link[i] = std::max(x.gradient_link[i], eb[i][at(nb[i])] + takes_[input][i]);
      }
      if (r + 1 < s_) {
        for (int k = nb[i]; k < nb[i + 1]; ++k) x.gradient[i][at(k)] = eb[i][at(k)];
        if (nf[i] < m_) x.activation_link[i] = std::max(x.activation_link[i], ef[i][at(nf[i])] + takes_[forward][i]);
      }
    }
  }

  /// Jackson's preemptive bound: the rank always serves, of what has arrived, the action with the longest tail. Actions of a kind
  /// come in order of their arrival, with falling tails, so one per kind is enough to look at.
  [[nodiscard]] double one_rank(const state& x, int r, const std::array<per_microbatch<double>, 3>& earliest) const {
    const auto i = at(r);
    constexpr double never = std::numeric_limits<double>::infinity();
    std::array<int, 3> next{};
    std::array<double, 3> head{}, left{};
    const auto load = [&](std::size_t c) {
      head[c] = next[c] < m_ ? earliest[c][i][at(next[c])] : never;
      left[c] = takes_[c][i];
    };
    for (std::size_t c = 0; c < 3; ++c) next[c] = x.done[c][i], load(c);
    double t = x.free[i], bound = t;
    for (;;) {
      double arrival = never, longest = -1;
      std::size_t chosen = 3;
      for (std::size_t c = 0; c < 3; ++c) {
        if (head[c] > t) {
          arrival = std::min(arrival, head[c]);
        } else if (const double q = tail_[c][i][at(next[c])]; q > longest) {
          longest = q, chosen = c;
        }
      }
      if (chosen == 3) {
        if (arrival == never) return bound;
        t = arrival;
      } else if (t + left[chosen] <= arrival) {
        t += left[chosen];
        bound = std::max(bound, t + longest);
        ++next[chosen];
        load(chosen);
      } else {
        left[chosen] -= arrival - t;
        t = arrival;
      }
    }
  }

  [[nodiscard]] bool no_later(const state& x, const state& y) const {
    for (int r = 0; r < s_; ++r) {
      const auto i = at(r);
      if (x.free[i] > y.free[i] || (x.barred[i] & ~y.barred[i]) != 0) return false;
      if (r + 1 < s_) {
        if (x.done[forward][i] < m_ && x.activation_link[i] > y.activation_link[i]) return false;
        for (int k = x.done[input][i]; k < x.done[input][i + 1]; ++k)
          if (x.gradient[i][at(k)] > y.gradient[i][at(k)]) return false;
      }
      if (r > 0) {
        if (x.done[input][i] < m_ && x.gradient_link[i] > y.gradient_link[i]) return false;
        for (int k = x.done[forward][i]; k < x.done[forward][i - 1]; ++k)
          if (x.activation[i][at(k)] > y.activation[i][at(k)]) return false;
      }
    }
    return true;
  }

  /// Adds a state to the next level unless one there is as good; drops those that it makes useless.
  void keep(const state& x) {
    if (table_.size() < 2 * (next_.size() + 1)) {
      table_.assign(std::max<std::size_t>(1024, 2 * table_.size()), -1);
      for (std::size_t n = 0; n < next_.size(); ++n)
        if (!next_[n].dominated) link(static_cast<int>(n));
    }
    for (int n = table_[slot(x.key)]; n >= 0; n = next_[at(n)].same_key) {
      auto& y = next_[at(n)];
      if (y.key != x.key || y.dominated || y.done != x.done) continue;
      if (no_later(y, x)) return;
      if (no_later(x, y)) y.dominated = true;
    }
    next_.push_back(x);
    link(static_cast<int>(next_.size()) - 1);
  }
  [[nodiscard]] std::size_t slot(std::uint64_t key) const { return static_cast<std::size_t>(key) & (table_.size() - 1); }
  void link(int n) {
    auto& head = table_[slot(next_[at(n)].key)];
    next_[at(n)].same_key = head;
    head = n;
  }

  /// Whether memory, here and upstream, lets the next forward of the rank come before its next backward_input.
  [[nodiscard]] bool can_forward_before_input(const state& x, int r) const {
    const int nf = x.done[forward][at(r)], nb = x.done[input][at(r)];
    if (nf == m_) return false;
    for (int u = r; u >= 0 && x.done[forward][at(u)] <= nf; --u)
      if (needs_[input][at(u)][at(nf)] > nb) return false;
    return true;
  }

  void expand(const state& x, int index) {
    double first_end = std::numeric_limits<double>::infinity();
    int rank = -1, first = -1;
    for (int r = 0; r < s_; ++r) {
      if (x.done[input][at(r)] == m_) continue;  // only weights are left: they just follow
      for (int what = 0; what < 3; ++what) {
        if ((x.barred[at(r)] >> what & 1) != 0 || !possible(x, r, what)) continue;
        const double end = ready(x, r, what) + takes_[at(what)][at(r)];
        if (end < first_end) first_end = end, rank = r, first = what;
      }
    }
    if (rank < 0) return;
    const auto i = at(rank);
    for (int what = 0; what < 3; ++what) {
      if ((x.barred[i] >> what & 1) != 0 || !possible(x, rank, what)) continue;
      if (what != first && ready(x, rank, what) >= first_end) continue;
      auto barred = static_cast<std::uint8_t>(0);
      if (what == weight) {
        barred = x.barred[i];
        for (const int other : {forward, input})
          if (takes_[weight][i] > 0 && possible(x, rank, other) && ready(x, rank, other) <= x.free[i])
            barred = static_cast<std::uint8_t>(barred | 1 << other);
        const bool no_input = (barred >> input & 1) != 0, no_forward = (barred >> forward & 1) != 0;
        const int nf = x.done[forward][i], nb = x.done[input][i];
        if (no_forward && (no_input || nb == nf)) continue;
        if (no_input && !can_forward_before_input(x, rank)) continue;
      }
      ++nodes_;
      state y = x;
      apply(y, rank, what);
      y.barred[i] = barred;
      y.parent = index;
      y.same_key = -1;
      y.key = x.key + hash_[at(what)][i];
      const auto& inputs = y.done[input];
      if (std::all_of(inputs.begin(), inputs.begin() + s_, [&](int n) { return n == m_; })) {
        finish(y);
        continue;
      }
      estimate(y);
      if (y.bound < cutoff()) keep(y);
    }
  }

  void finish(const state& x) {
    double end = 0;
    for (int r = 0; r < s_; ++r) end = std::max(end, x.free[at(r)] + (m_ - x.done[weight][at(r)]) * takes_[weight][at(r)]);
    if (end >= cutoff()) return;
    best_ = end;
    words_.assign(at(s_), {});
    const auto add = [&](int r, int what) { words_[at(r)] += "FBW"[what]; };
    add(x.rank, x.kind);
    int n = x.parent;
    for (auto level = steps_.rbegin(); level != steps_.rend() && n >= 0; ++level) {
      const auto& s = (*level)[at(n)];
      if (s.parent >= 0) add(s.rank, s.kind);
      n = s.parent;
    }
    for (int r = 0; r < s_; ++r) {
      auto& word = words_[at(r)];
      std::reverse(word.begin(), word.end());
      word.append(at(3 * m_) - word.size(), 'W');
    }
  }

  /// One sweep over the levels, each cut to `width` states. Returns a lower bound for all that it did not look at.
  double pass(std::size_t width) {
    double open = std::numeric_limits<double>::infinity();
    std::vector<state> level(1);
    estimate(level[0]);
    steps_.clear();
    while (!level.empty()) {
      steps_.emplace_back();
      steps_.back().reserve(level.size());
      for (const auto& x : level) steps_.back().push_back({x.parent, x.rank, x.kind});
      next_.clear();
      table_.assign(1024, -1);
      for (std::size_t n = 0; n < level.size(); ++n) {
        if (level[n].bound >= cutoff()) continue;
        if (nodes_ >= node_limit_)
          open = std::min(open, level[n].bound);
        else
          expand(level[n], static_cast<int>(n));
      }
      std::erase_if(next_, [&](const state& x) { return x.dominated || x.bound >= cutoff(); });
      if (next_.size() > width) {
        const auto better = [](const state& x, const state& y) {
          return x.bound != y.bound ? x.bound < y.bound : x.spread < y.spread;
        };
        const auto cut = next_.begin() + static_cast<std::ptrdiff_t>(width);
        std::nth_element(next_.begin(), cut, next_.end(), better);
        for (auto x = cut; x != next_.end(); ++x) open = std::min(open, x->bound);
        next_.erase(cut, next_.end());
      }
      level.swap(next_);
    }
    return open;
  }

  judge_instance p_;
  int s_, m_;
  std::array<per_rank<double>, 3> takes_{};
  per_rank<double> a_{}, g_{};                  ///< occupied: from rank i to i + 1, and from rank i to i - 1
  per_rank<double> a_behind_{}, g_behind_{};    ///< and until arrival
  std::array<per_microbatch<int>, 3> needs_{};  ///< backwards (weights) before a forward, for memory
  std::array<per_microbatch<double>, 3> tail_{};
  std::array<per_rank<std::uint64_t>, 3> hash_{};
  double root_scale_ = 0, best_ = std::numeric_limits<double>::infinity(), hint_ = best_;
  judge_words words_;
  long nodes_ = 0, node_limit_ = 0;
  std::vector<state> next_;
  std::vector<int> table_;
  std::vector<std::vector<step>> steps_;
};

/// The optimum of an instance. `width`: states per level of the first pass; it changes the work, not the result.
inline verdict optimum(const judge_instance& p, double hint = std::numeric_limits<double>::infinity(),
                       long node_limit = 20'000'000, std::size_t width = 32) {
  return judge(p).solve(hint, node_limit, width);
}

}  // namespace hetsched::test
