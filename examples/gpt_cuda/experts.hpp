// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cuda/tensor.hpp>

#include <gpt_cuda/layer_base.hpp>

namespace gpt_cuda {

/// Whole numbers on a queue.
template <class Api>
[[nodiscard]] matrix<Api, int> upload_whole(const hetsched::cuda_queue<Api>& q, const std::vector<int>& from) {
  const hetsched::cuda_queue<Api> host(q.devices());
  matrix<Api, int> pinned(1, from.size(), host);
  pinned.buffer().host_access(true);
  if (!from.empty()) std::memcpy(pinned.data(), from.data(), from.size() * sizeof(int));
  if (q.on_host() || from.empty()) return pinned;
  matrix<Api, int> made(1, from.size(), q);
  work_on(q, {&pinned.buffer()}, {&made.buffer()}, [&] { enqueue_copy(q, made.buffer(), pinned.buffer()); });
  return made;
}

/// See gpt::experts. Which rows go where is decided on the host, which waits for the router's scores.
template <class Api, class Real>
class experts : public layer_base<Api, Real> {
  using base = layer_base<Api, Real>;
  using base::m_, base::own, base::axis_, base::make, base::make_inner;

 public:
  using typename base::own_tensor, typename base::queue, typename base::inner;
  struct context {
    own_tensor chances, slopes;            ///< rows x experts; slopes: of the scores
    std::vector<std::size_t> sent, taken;  ///< rows, by rank
    std::vector<int> first_here;           ///< of each of this rank's experts among the rows that come, and their number
    int places = 0, taken_rows = 0;
    matrix<Api, int> rows, expert;             ///< of each place
    matrix<Api, int> row_experts, row_places;  ///< of each row
    matrix<Api, int> order, expert_here;       ///< of each row that comes: its place expert by expert; its expert there
    inner answers, input, inside, active, output_gradient, inside_gradient;
  };

  /// `first`: the router's parameter.
  experts(const shape& m, parameters<Api> all, const layer_part<Api>& part, int first)
      : base(m, std::move(all), part), axis_of_experts_(part.expert), router_(first) {
    down_ = first + (m.bias ? 3 : 2);
    hidden_ = own(router_).value.rows();
    here_ = own(down_).value.rows() / hidden_;
    width_ = own(down_).value.columns();
    if (!std::same_as<Real, float> && hidden_ % 2 != 0)
      throw hetsched::input_error("experts with products of bf16 numbers: hidden has to be even");
  }

  /// Of rows of all slices; not yet summed over the tensor axis.
  own_tensor forward(const queue& q, const inner& all, context& c) {
    choose(q, all, c);
    auto asked = make_inner(q, c.places, hidden_);
    each(q, asked.size(), take_rows{}, hidden_, in(c.rows), in(all), out(asked));
    c.input = send(q, std::move(asked), c);
    c.inside = make_inner(q, c.taken_rows, own(router_ + 1).value.columns());
    for_each_expert(c, [&](int e, int first, int count) {
      multiply_rows(q, c.inside, first, count, 0, rows_of(factor_of(c.input), first, count), matrix_of(router_ + 1, e));
    });
    if (m_.bias) add_bias_of(q, router_ + 2, c, c.inside);
    c.active = make_inner(q, c.taken_rows, width_);
    each(q, c.active.size(), activate{}, width_, m_.gated, in(c.inside), argument<const float>(), out(c.active));
    auto output = make_inner(q, c.taken_rows, hidden_);
    for_each_expert(c, [&](int e, int first, int count) {
      multiply_rows(q, output, first, count, 0, rows_of(factor_of(c.active), first, count), matrix_of(down_, e),
                    transposed::second);
    });
    if (adds_bias()) add_bias_of(q, down_ + 1, c, output);
    c.answers = send_back(q, std::move(output), c);
    auto sum = make(q, all.rows(), hidden_);
    each(q, sum.size(), mix_answers{}, hidden_, m_.experts_per_token, m_.experts, in(c.row_experts), in(c.row_places),
         in(c.chances), in(c.answers), out(sum));
    return sum;
  }
  /// Of the gradients of all rows.
  own_tensor backward_input(const queue& q, const own_tensor& wanted, context& c) {
    c.slopes = make(q, c.chances.rows(), m_.experts);
    each(q, c.slopes.size(), fill_with{}, 0.0f, out(c.slopes));
    auto asked = make_inner(q, c.places, hidden_);
    teams(q, c.places, answers_backward{}, hidden_, m_.experts, in(c.rows), in(c.expert), in(c.chances), in(c.answers),
          in(wanted), out(c.slopes), out(asked));
    c.output_gradient = send(q, std::move(asked), c);
    auto dactive = make_inner(q, c.taken_rows, width_);
    for_each_expert(c, [&](int e, int first, int count) {
      multiply_rows(q, dactive, first, count, 0, rows_of(factor_of(c.output_gradient), first, count), matrix_of(down_, e));
    });
    c.inside_gradient = make_inner(q, c.inside.rows(), c.inside.columns());
    each(q, dactive.size(), activate_backward{}, width_, m_.gated, in(c.inside), argument<const float>(), in(dactive),
         out(c.inside_gradient));
    auto dinput = make_inner(q, c.taken_rows, hidden_);
    for_each_expert(c, [&](int e, int first, int count) {
      multiply_rows(q, dinput, first, count, 0, rows_of(factor_of(c.inside_gradient), first, count), matrix_of(router_ + 1, e),
                    transposed::second);
    });
    const auto back = send_back(q, std::move(dinput), c);
    teams(q, c.slopes.rows(), softmax_row_backward{}, m_.experts, in(c.chances), out(c.slopes));
    auto dall = make(q, wanted.rows(), hidden_);
    inner room;
    multiply(q, dall, 0, base::factor_from(q, c.slopes, room), own(router_).as_factor(), transposed::second);
    each(q, dall.size(), add_asked{}, hidden_, m_.experts_per_token, in(c.row_places), in(back), out(dall));
    return dall;
  }
  void backward_weight(const queue& q, const inner& all, context& c) {
    inner room;
    multiply(q, own(router_).gradient, 1, factor_of(all), base::factor_from(q, c.slopes, room), transposed::first);
    for_each_expert(c, [&](int e, int first, int count) {
      const auto dinside = rows_of(factor_of(c.inside_gradient), first, count),
                 doutput = rows_of(factor_of(c.output_gradient), first, count);
      multiply_rows(q, own(router_ + 1).gradient, e * hidden_, hidden_, 1, rows_of(factor_of(c.input), first, count), dinside,
                    transposed::first);
      multiply_rows(q, own(down_).gradient, e * hidden_, hidden_, 1, doutput, rows_of(factor_of(c.active), first, count),
                    transposed::first);
      if (m_.bias) sum_rows(q, c.inside_gradient, first, count, own(router_ + 2).gradient, e);
      if (adds_bias()) sum_rows(q, c.output_gradient, first, count, own(down_ + 1).gradient, e);
    });
  }

 private:
  /// One rank of a tensor axis adds what stands behind the sum over them.
  [[nodiscard]] bool adds_bias() const { return m_.bias && axis_.rank == 0; }
  [[nodiscard]] static factor rows_of(const factor& f, int first, int count) {
    const std::size_t row = static_cast<std::size_t>(f.columns) * (f.half ? 2 : 4);
    return {
        {static_cast<const char*>(f.memory.data) + static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row},
        count,
        f.columns,
        f.half};
  }
  [[nodiscard]] factor matrix_of(int which, int expert) { return rows_of(own(which).as_factor(), expert * hidden_, hidden_); }
  /// A product whose result are some rows of c.
  template <class Sum>
  static void multiply_rows(const queue& q, matrix<Api, Sum>& c, int first, int count, float beta, const factor& a,
                            const factor& b, transposed which = transposed::none) {
    auto p = call_of(c, beta, a, b, which);
    const auto at = static_cast<std::size_t>(first) * static_cast<std::size_t>(c.columns()),
               n = static_cast<std::size_t>(count) * static_cast<std::size_t>(c.columns());
    if (p.half_c.data)
      p.half_c = {p.half_c.data + at, n * sizeof(bf16)};
    else
      p.c = {p.c.data + at, n * sizeof(float)};
    multiply(q, p);
  }
  void add_bias_of(const queue& q, int which, context& c, inner& y) {
    each(q, y.size(), add_expert_bias{}, y.columns(), in(c.expert_here), in(own(which).value), out(y));
  }
  void sum_rows(const queue& q, const inner& x, int first, int count, own_tensor& gradient, int row) {
    const int columns = x.columns();
    const auto width = static_cast<std::size_t>(columns);
    auto sums = make(q, band::count(count), columns);
    const argument<const Real> part{x.data() + static_cast<std::size_t>(first) * width,
                                    static_cast<std::size_t>(count) * width * sizeof(Real)};
    each(q, sums.size(), sum_band{}, count, columns, part, out(sums));
    const argument<float> to{gradient.data() + static_cast<std::size_t>(row) * width, width * sizeof(float)};
    each(q, columns, sum_bands{}, sums.rows(), columns, in(sums), to);
  }
  /// body(expert of this rank, its first row, their number)
  template <class Body>
  void for_each_expert(const context& c, const Body& body) const {
    for (int e = 0; e < here_; ++e) {
      const int first = c.first_here[static_cast<std::size_t>(e)], last = c.first_here[static_cast<std::size_t>(e) + 1];
      if (first < last) body(e, first, last - first);
    }
  }

  /// Of each row the experts that the router likes best; of equal ones the first.
  void choose(const queue& q, const inner& all, context& c) {
    c.chances = make(q, all.rows(), m_.experts);
    multiply(q, c.chances, 0, factor_of(all), own(router_).as_factor());
    teams(q, all.rows(), softmax_row{}, m_.experts, out(c.chances));
    const auto told = download(q, c.chances);
    const auto all_experts = static_cast<std::size_t>(m_.experts), chosen = static_cast<std::size_t>(m_.experts_per_token);
    const auto count = told.rows;
    std::vector<std::vector<int>> takers(all_experts);
    std::vector<std::size_t> order(all_experts);
    for (std::size_t r = 0; r < count; ++r) {
      const float* const p = told.values.data() + r * all_experts;
      for (std::size_t e = 0; e < all_experts; ++e) order[e] = e;
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(chosen), order.end(),
                        [&](std::size_t a, std::size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
      for (std::size_t k = 0; k < chosen; ++k) takers[order[k]].push_back(static_cast<int>(r));
    }
    std::vector<int> rows, expert, row_experts(count * chosen), row_places(count * chosen);
    std::vector<std::size_t> next(count);
    for (std::size_t e = 0; e < all_experts; ++e)
      for (const int r : takers[e]) {
        const auto row = static_cast<std::size_t>(r), at = row * chosen + next[row]++;
        row_experts[at] = static_cast<int>(e);
        row_places[at] = static_cast<int>(rows.size());
        rows.push_back(r);
        expert.push_back(static_cast<int>(e));
      }
    c.places = static_cast<int>(rows.size());
    agree(q, takers, c);
    c.rows = upload_whole(q, rows);
    c.expert = upload_whole(q, expert);
    c.row_experts = upload_whole(q, row_experts);
    c.row_places = upload_whole(q, row_places);
  }
  /// Who gets how many.
  void agree(const queue& q, const std::vector<std::vector<int>>& takers, context& c) {
    const auto ranks = static_cast<std::size_t>(axis_of_experts_.size), here = static_cast<std::size_t>(here_);
    numbers mine{1, takers.size(), {}};
    for (const auto& of : takers) mine.values.push_back(static_cast<float>(of.size()));
    auto told = mine.values;  // by rank, of this rank's experts
    if (ranks > 1) {
      own_tensor others(1, takers.size(), q);
      const std::vector<std::size_t> each_part(ranks, here);
      axis_of_experts_.all_to_all(upload(q, mine), each_part, others, each_part, q);
      told = download(q, others).values;
    }
    const auto count = [&](std::size_t rank, std::size_t e) { return static_cast<int>(told[rank * here + e]); };
    c.sent.assign(ranks, 0);
    c.taken.assign(ranks, 0);
    c.first_here.assign(here + 1, 0);
    for (std::size_t k = 0; k < ranks; ++k)
      for (std::size_t e = 0; e < here; ++e) {
        c.sent[k] += takers[k * here + e].size();
        c.taken[k] += static_cast<std::size_t>(count(k, e));
        c.first_here[e + 1] += count(k, e);
      }
    for (std::size_t e = 0; e < here; ++e) c.first_here[e + 1] += c.first_here[e];
    c.taken_rows = c.first_here[here];
    std::vector<int> order, expert_here(static_cast<std::size_t>(c.taken_rows));
    auto next = c.first_here;
    for (std::size_t k = 0; k < ranks; ++k)
      for (std::size_t e = 0; e < here; ++e)
        for (int i = count(k, e); i > 0; --i) {
          expert_here[static_cast<std::size_t>(next[e])] = static_cast<int>(e);
          order.push_back(next[e]++);
        }
    c.order = upload_whole(q, order);
    c.expert_here = upload_whole(q, expert_here);
  }

  /// Rows place by place go to the ranks of their experts, where they lie expert by expert.
  inner send(const queue& q, inner rows, const context& c) {
    auto by_rank = exchange(q, std::move(rows), c.sent, c.taken, c.taken_rows);
    auto by_expert = make_inner(q, c.taken_rows, hidden_);
    each(q, by_expert.size(), put_rows{}, hidden_, in(c.order), in(by_rank), out(by_expert));
    return by_expert;
  }
  /// And back.
  inner send_back(const queue& q, const inner& by_expert, const context& c) {
    auto by_rank = make_inner(q, c.taken_rows, hidden_);
    each(q, by_rank.size(), take_rows{}, hidden_, in(c.order), in(by_expert), out(by_rank));
    return exchange(q, std::move(by_rank), c.taken, c.sent, c.places);
  }
  inner exchange(const queue& q, inner rows, std::vector<std::size_t> sent, std::vector<std::size_t> taken, int count) {
    if (axis_of_experts_.size == 1) return rows;
    const auto columns = static_cast<std::size_t>(hidden_) * sizeof(Real) / sizeof(float);
    for (auto& n : sent) n *= columns;
    for (auto& n : taken) n *= columns;
    const auto from = base::carried(std::move(rows));
    auto to = base::carried(make_inner(q, count, hidden_));
    axis_of_experts_.all_to_all(from, sent, to, taken, q);
    return inner({static_cast<std::size_t>(count), static_cast<std::size_t>(hidden_)}, std::move(to.buffer()));
  }

  group_axis<Api> axis_of_experts_;
  int router_ = 0, down_ = 0, hidden_ = 0, here_ = 0, width_ = 0;
};

}  // namespace gpt_cuda
