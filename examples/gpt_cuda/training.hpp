// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/timeline.hpp>

#include <gpt_cuda/description.hpp>
#include <gpt_cuda/layers.hpp>

namespace gpt_cuda {

/// The sum of a parameter's gradients on two ranks, for both. One device's: added at once.
template <class Api>
class tied_gradient {
  using channels = hetsched::cuda_local_communicator<tensor<Api>, Api>;
  using traits = hetsched::tensor_traits<tensor<Api>>;

 public:
  tied_gradient(channels comm, int peer, tensor<Api>& own, hetsched::cuda_queue<Api> q)
      : comm_(std::move(comm)), own_(&own), q_(std::move(q)) {
    to_ = comm_.open({comm_.rank(), peer, hetsched::payload::layer_gradient});
    from_ = comm_.open({peer, comm_.rank(), hetsched::payload::layer_gradient});
    out_ = traits::make({own.shape()[0], own.shape()[1]}, q_);
    in_ = traits::make({own.shape()[0], own.shape()[1]}, q_);
  }
  /// Throws: communication_error.
  void add(std::int64_t step, double deadline_s) {
    typename channels::operation sent, received;
    const hetsched::stamp what{.step = step, .what = hetsched::payload::layer_gradient};
    traits::assign(out_, *own_, q_);
    comm_.post_receive(from_, what, in_, received);
    comm_.post_send(to_, what, out_, sent);
    const auto until = hetsched::deadline_in(deadline_s);
    for (const bool sends : {false, true})
      while (!comm_.poll(sends ? sent : received))
        if (comm_.wait(until, sends) != hetsched::wait_result::progress) {
          comm_.abort("the gradient of the tied table has not come");
          throw hetsched::communication_error(
              "step " + std::to_string(step) + ": the gradient of the tied table: " + comm_.failure(), {},
              hetsched::no_microbatch, {});
        }
    traits::add(*own_, in_, q_);
  }

 private:
  channels comm_;
  tensor<Api>* own_;
  hetsched::cuda_queue<Api> q_;
  int to_ = -1, from_ = -1;
  tensor<Api> out_, in_;
};

/// One rank of a training.
template <hetsched::cuda_graph_api Api>
class training_rank {
  using own_tensor = tensor<Api>;
  using traits = hetsched::tensor_traits<own_tensor>;
  using queue = hetsched::cuda_queue<Api>;
  using backend = hetsched::cuda_backend<Api>;
  using channels = hetsched::cuda_local_communicator<own_tensor, Api>;
  using layers = hetsched::layer_list<own_tensor, any_layer<Api>, queue>;
  using stage = hetsched::cuda_graphed_stage<own_tensor, layers, Api>;
  using executor = hetsched::pipeline_executor<own_tensor, stage, channels, hetsched::no_stager, backend>;

 public:
  training_rank(const training& t, channels& comm, backend& own) : t_(t), comm_(comm), q_(own.compute_queue()) {
    for (const auto& copy : hetsched::stages_of_rank(t.order, comm.rank())) {
      std::vector<any_layer<Api>> list;
      for (int l = t.stages[static_cast<std::size_t>(copy.stage)].first; l < t.stages[static_cast<std::size_t>(copy.stage)].last;
           ++l) {
        const auto* const resumed = t.resumed ? &(*t.resumed)[static_cast<std::size_t>(l)] : nullptr;
        std::vector<numbers> first;
        if (resumed)
          for (const auto& p : *resumed) first.push_back(p.value);
        else
          first = t.first_weights(l);
        held_.push_back({l, make_parameters<Api>(t.model, l, first, q_), {}});
        for (std::size_t i = 0; i < first.size(); ++i)
          for (std::size_t s = 0; s < states(); ++s) {
            const bool is_kept = resumed && s < (*resumed)[i].state.size();
            const auto& f = first[i];
            held_.back().state.push_back(
                upload(q_, is_kept ? (*resumed)[i].state[s] : numbers{f.rows, f.columns, std::vector<float>(f.values.size())}));
          }
        list.push_back(make_layer<Api>(t.model, l, held_.back().own, q_));
      }
      stages_.emplace_back(layers(std::move(list)), t.graphs);
      reads_ = reads_ || copy.stage == 0;
      tells_ = tells_ || copy.stage + 1 == t.order.stages;
    }
    const auto rows = static_cast<std::size_t>(t.microbatch_size * t.model.sequence);
    const std::vector<hetsched::tensor_shape> boundaries(static_cast<std::size_t>(t.order.stages - 1),
                                                         {rows, static_cast<std::size_t>(t.model.hidden)});
    executor_.emplace(t.order, std::span(stages_), boundaries, comm, hetsched::executor_options{.deadline_s = t.deadline_s},
                      hetsched::no_stager{}, own);
    if (t.model.tied && reads_ != tells_) {
      const int peer = t.order.rank(0, reads_ ? t.order.stages - 1 : 0);
      tied_.emplace(comm, peer, table(reads_ ? 0 : t.model.layer_count() - 1).gradient, q_);
    }
    int pieces = 0;
    for (const auto& h : held_)
      for (const auto& p : *h.own) pieces = std::max(pieces, pieces_of(p.value.size()));
    sums_ = own.make_numbers(count());
    partial_ = hetsched::cuda_buffer<Api>(q_, static_cast<std::size_t>(pieces) * sizeof(double));
  }

  /// Returns this step's mean loss, the same on all ranks; all of them go on if `goes_on` says so.
  double step(std::int64_t number) {
    std::vector<own_tensor> inputs, targets;
    for (int m = 0; m < t_.order.microbatches && (reads_ || tells_); ++m) {
      const auto b = t_.draw(number, m);
      inputs.push_back(reads_ ? upload(q_, b.inputs) : own_tensor());
      targets.push_back(tells_ ? upload(q_, b.targets) : own_tensor());
    }
    executor_->step(std::span<const own_tensor>(inputs), std::span<const own_tensor>(targets), cross_entropy{});
    if (tied_) tied_->add(number, t_.deadline_s);
    if (t_.model.tied && reads_ && tells_) {
      auto &first = table(0).gradient, &last = table(t_.model.layer_count() - 1).gradient;
      traits::add(first, last, q_);
      traits::assign(last, first, q_);
    }
    double loss = 0;
    for (const double l : executor_->losses()) loss += l;
    const auto all = gather({loss / t_.order.microbatches, squares()});
    double squares = 0;
    loss = 0;
    for (const auto& told : all) loss += told[0], squares += told[1];
    if (!std::isfinite(loss) || !std::isfinite(squares))
      throw hetsched::error("step " + std::to_string(number) + ": the " + (std::isfinite(loss) ? "gradients are" : "loss is") +
                            " not finite");
    const double norm = std::sqrt(squares);
    update(number, t_.clip > 0 && norm > t_.clip ? static_cast<float>(t_.clip / norm) : 1.0f);
    return loss;
  }
  /// Of all ranks alike, if of any.
  bool all_go_on(bool own) {
    const auto all = gather({own ? 1.0 : 0.0});
    return std::all_of(all.begin(), all.end(), [](const auto& told) { return told[0] == 1; });
  }
  [[nodiscard]] bool tells() const { return tells_; }
  [[nodiscard]] const hetsched::timeline& measured() const { return executor_->measured(); }
  /// Of this rank's layers. Waits for all that is on the queue.
  void read(saved_model& all) const {
    for (const auto& h : held_) {
      auto& layer = all[static_cast<std::size_t>(h.layer)];
      layer.clear();
      for (std::size_t i = 0; i < h.own->size(); ++i) {
        layer.push_back({download(q_, (*h.own)[i].value), {}});
        for (std::size_t s = 0; s < states(); ++s) layer.back().state.push_back(download(q_, h.state[i * states() + s]));
      }
    }
  }

 private:
  struct held {
    int layer = 0;
    parameters<Api> own;
    std::vector<own_tensor> state;  ///< of the parameters, one after the other
  };
  [[nodiscard]] std::size_t states() const { return std::holds_alternative<hetsched::adamw>(t_.optimizer) ? 2 : 1; }
  [[nodiscard]] std::size_t count() const {
    std::size_t n = 0;
    for (const auto& h : held_) n += h.own->size();
    return n;
  }
  static int pieces_of(int n) { return (n + sum_squares::each - 1) / sum_squares::each; }
  /// The table of tokens of embedding or head.
  [[nodiscard]] parameter<Api>& table(int layer) {
    return std::find_if(held_.begin(), held_.end(), [&](const held& h) { return h.layer == layer; })->own->front();
  }

  std::vector<std::vector<double>> gather(const std::vector<double>& mine) {
    std::vector<std::vector<double>> all;
    if (comm_.gather(mine, all, hetsched::deadline_in(t_.deadline_s)) != hetsched::wait_result::progress)
      throw hetsched::communication_error("rank " + std::to_string(comm_.rank()) + ", between steps: " + comm_.failure(), {},
                                          hetsched::no_microbatch, {});
    return all;
  }

  /// Of this rank's gradients; a tied table counts once.
  double squares() {
    std::size_t k = 0;
    const argument<double> parts{static_cast<double*>(partial_.data()), partial_.bytes()};
    for (auto& h : held_)
      for (std::size_t i = 0; i < h.own->size(); ++i, ++k) {
        const auto& g = (*h.own)[i].gradient;
        const int pieces = pieces_of(g.size());
        const argument<double> sum{sums_.data() + k, sizeof(double)};
        each(q_, pieces, sum_squares{}, g.size(), in(g), parts);
        each(q_, 1, sum_doubles{}, pieces, argument<const double>{parts.data, parts.bytes}, sum);
      }
    q_.finish();
    double all = 0;
    k = 0;
    const auto* const sums = std::as_const(sums_).begin();
    for (auto& h : held_)
      for (std::size_t i = 0; i < h.own->size(); ++i, ++k)
        if (!(t_.model.tied && i == 0 && h.layer + 1 == t_.model.layer_count())) all += sums[k];
    return all;
  }

  void update(std::int64_t number, float factor) {
    const double rate = t_.learning_rate(number);
    for (auto& h : held_)
      for (std::size_t i = 0; i < h.own->size(); ++i) {
        auto& p = (*h.own)[i];
        auto* const state = h.state.data() + i * states();
        if (const auto* a = std::get_if<hetsched::adamw>(&t_.optimizer)) {
          const auto unbias = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(number + 1)); };
          const adamw_update body{static_cast<float>(a->beta1),
                                  static_cast<float>(1 - a->beta1),
                                  static_cast<float>(a->beta2),
                                  static_cast<float>(1 - a->beta2),
                                  static_cast<float>(1 - rate * a->weight_decay),
                                  static_cast<float>(rate / unbias(a->beta1)),
                                  static_cast<float>(1 / std::sqrt(unbias(a->beta2))),
                                  static_cast<float>(a->epsilon)};
          each(q_, p.value.size(), body, factor, in(p.gradient), out(state[0]), out(state[1]), out(p.value));
        } else {
          const auto& s = std::get<hetsched::sgd>(t_.optimizer);
          const sgd_update body{static_cast<float>(rate), static_cast<float>(s.momentum), static_cast<float>(s.weight_decay)};
          each(q_, p.value.size(), body, factor, in(p.gradient), out(state[0]), out(p.value));
        }
        p.refresh(q_);
      }
  }

  const training& t_;
  channels comm_;
  queue q_;
  std::vector<held> held_;
  std::vector<stage> stages_;
  std::optional<executor> executor_;
  std::optional<tied_gradient<Api>> tied_;
  typename backend::numbers sums_;      ///< squares of each parameter's gradient
  hetsched::cuda_buffer<Api> partial_;  ///< of one of them
  bool reads_ = false, tells_ = false;  ///< has the first stage, the last
};

/// Trains on a thread per rank.
/// Throws: cuda_error, communication_error; input_error for a device that is not there.
template <hetsched::cuda_graph_api Api>
[[nodiscard]] trained train(hetsched::cuda_devices<Api>& devices, const training& t) {
  using channels = hetsched::cuda_local_communicator<tensor<Api>, Api>;
  if (t.order.directions != 1) throw hetsched::input_error("schedules of two directions are not trained on GPUs");
  if (t.graphs && std::find(t.places.begin(), t.places.end(), -1) != t.places.end())
    throw hetsched::input_error("CUDA graphs are for pipelines whose ranks are all on GPUs");
  trained result;
  result.state.resize(static_cast<std::size_t>(t.model.layer_count()));
  std::vector<std::vector<hetsched::timeline>> measured(t.places.size());
  hetsched::run_on_threads(channels::connect(devices, t.places), [&](channels& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    hetsched::cuda_backend<Api> own(devices, t.places[r], "rank " + std::to_string(r));
    const auto bound = own.bind();
    training_rank<Api> rank(t, comm, own);
    bool goes_on = t.first_step < t.steps;
    for (auto step = t.first_step; goes_on; ++step) {
      const double loss = rank.step(step);
      if (step + t.timelines >= t.steps) measured[r].push_back(rank.measured());
      if (rank.tells()) result.losses.push_back(loss);
      goes_on = rank.all_go_on(!rank.tells() || t.told(step, loss)) && step + 1 < t.steps;
      const bool saves = t.save && (!goes_on || (t.save_every > 0 && (step + 1) % t.save_every == 0));
      if (goes_on && !saves) continue;
      rank.read(result.state);
      (void)rank.all_go_on(true);  // all have read theirs
      if (saves && rank.tells()) t.save(step + 1, result.state);
      (void)rank.all_go_on(true);  // nobody reads anew before it is saved
    }
  });
  for (std::size_t s = 0; s < measured[0].size(); ++s) {
    auto& parts = result.measured.emplace_back();
    for (const auto& of_rank : measured) parts.push_back(of_rank[s]);
  }
  return result;
}

}  // namespace gpt_cuda
