// SPDX-License-Identifier: Apache-2.0
// One rank of a pipeline over slow links, run by bench/links.sh, a process per rank: how long the schedules of the 1F1B family
// take against what simulate() says. The rank and the number of ranks come from the environment, as launchers set them.
//
// Layers take a given time and compute nothing: they sleep (or spin), as a host does whose accelerator works, so a machine needs
// no device and no core per rank. Tensors are real, and so is their way: the executor over Gloo over TCP. Links are measured
// first, by messages of their own, and nothing is fitted afterwards. --rehearsed-mbit takes a shaped_communicator in their place.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>

#include <hetsched/gloo.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/executor/measured.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>

namespace {

using namespace hetsched;
using clock_type = std::chrono::steady_clock;

/// Floats of one extent, not set.
class block {
 public:
  using value_type = float;
  block() = default;
  explicit block(const tensor_shape& shape) : count_(shape.at(0)), data_(std::make_unique_for_overwrite<float[]>(shape.at(0))) {}
  [[nodiscard]] tensor_shape shape() const { return {count_}; }
  float* data() { return data_.get(); }
  [[nodiscard]] const float* data() const { return data_.get(); }

 private:
  std::size_t count_ = 0;
  std::unique_ptr<float[]> data_;
};

/// Counts the stages that a tensor has passed, in times that are told.
struct timed_layer {
  struct context {
    std::size_t input = 0;  ///< elements
  };
  double forward_s = 0, backward_s = 0;
  std::size_t output = 1;  ///< elements
  bool spin = false;

  block forward(const block& x, context& c) const {
    const auto until = after(forward_s);
    c.input = x.shape().at(0);
    block y({output});
    y.data()[0] = x.data()[0] + 1;
    wait_until(until);
    return y;
  }
  block backward(const block& dy, context& c) const {
    const auto until = after(backward_s);
    block dx({c.input});
    dx.data()[0] = dy.data()[0] + 1;
    wait_until(until);
    return dx;
  }
  std::vector<block>& parameters() { return none; }
  std::vector<block>& gradients() { return none; }
  std::vector<block> none;

 private:
  static clock_type::time_point after(double seconds) {
    return clock_type::now() + std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds));
  }
  void wait_until(clock_type::time_point until) const {
    if (!spin) std::this_thread::sleep_until(until);
    while (clock_type::now() < until) {
    }
  }
};

using communicator_type = gloo_communicator<block>;
using links_of_ranks = std::map<std::pair<int, int>, hetsched::link>;  ///< by (from, to), neighbours only

struct arguments {
  std::string rendezvous, address, trace;
  std::vector<std::string> schedules{"1f1b", "eager_1f1b", "h1f1b", "exact_1f1b"};
  std::vector<double> ratios{0.25, 0.5, 0.75, 1};
  double compute_s = 0.06;  ///< of a microbatch on a stage, a third of it the forward's
  int microbatches = 64, repeats = 3;
  bool spin = false;
  double rehearsed = 0;  ///< bits per second; above 0: links are slowed down by shaped_communicator
};

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list(1);
  for (const char c : text) {
    if (c == ',')
      list.emplace_back();
    else
      list.back() += c;
  }
  return list;
}

arguments read(int argc, char** argv) {
  arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--spin") {
      given.spin = true;
      continue;
    }
    if (++i == argc) throw input_error(name + " needs a value");
    const std::string value = argv[i];
    if (name == "--rendezvous") {
      given.rendezvous = value;
    } else if (name == "--address") {
      given.address = value;
    } else if (name == "--trace") {
      given.trace = value;
    } else if (name == "--schedules") {
      given.schedules = words(value);
    } else if (name == "--ratios") {
      given.ratios.clear();
      for (const auto& word : words(value)) given.ratios.push_back(std::stod(word));
    } else if (name == "--compute-ms") {
      given.compute_s = std::stod(value) / 1e3;
    } else if (name == "--microbatches") {
      given.microbatches = std::stoi(value);
    } else if (name == "--rehearsed-mbit") {
      given.rehearsed = std::stod(value) * 1e6;
    } else if (name == "--repeats") {
      given.repeats = std::stoi(value);
    } else {
      throw input_error("there is no option " + name);
    }
  }
  return given;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

deadline_time soon() { return clock_type::now() + std::chrono::seconds(60); }

/// Every rank's numbers on every rank.
std::vector<std::vector<double>> gathered(communicator_type& comm, const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  if (comm.gather(mine, all, soon()) != wait_result::progress)
    throw std::runtime_error("not all ranks gather: " + comm.failure());
  return all;
}

void await(communicator_type& comm, communicator_type::operation& op) {
  while (!comm.poll(op))
    if (comm.wait(soon(), true) != wait_result::progress) throw std::runtime_error("a message does not come: " + comm.failure());
}

/// The link from a neighbour to this rank; both call it. Latency: half of the time there and back of a few bytes. Bandwidth: of
/// messages behind each other in both directions at a time, as in training, where each way also carries what acknowledges the
/// other; by the median time from one arrival to the next.
hetsched::link measure_link(communicator_type& comm, int peer) {
  constexpr int pings = 21, messages = 16;
  constexpr std::size_t elements = 1u << 18;
  const int me = comm.rank();
  const int out_channel = comm.open({me, peer, payload::layer_gradient, 0, 0}),
            in_channel = comm.open({peer, me, payload::layer_gradient, 0, 0});
  const auto marked = [](int number) { return stamp{0, number, payload::layer_gradient, 0, 0}; };
  std::vector<double> round_trips;
  for (int k = 0; k < pings; ++k) {
    communicator_type::operation out, in;
    block mine({1}), theirs({1});
    mine.data()[0] = 0;
    comm.post_receive(in_channel, marked(k), theirs, in);
    if (me < peer) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the other end's receive is known by then
      const double start_s = steady_now_s();
      comm.post_send(out_channel, marked(k), mine, out);
      await(comm, in);
      round_trips.push_back(steady_now_s() - start_s);
    } else {
      await(comm, in);
      comm.post_send(out_channel, marked(k), mine, out);
    }
    await(comm, out);
  }
  std::vector<block> sent, received;
  const auto out = std::make_unique<communicator_type::operation[]>(messages);
  const auto in = std::make_unique<communicator_type::operation[]>(messages);
  for (std::size_t k = 0; k < messages; ++k) {
    sent.emplace_back(tensor_shape{elements});
    std::fill_n(sent.back().data(), elements, 0.0f);
    received.emplace_back(tensor_shape{elements});
  }
  for (std::size_t k = 0; k < messages; ++k) {
    comm.post_receive(in_channel, marked(pings + static_cast<int>(k)), received[k], in[k]);
    comm.post_send(out_channel, marked(pings + static_cast<int>(k)), sent[k], out[k]);
  }
  for (std::size_t k = 0; k < messages; ++k) {
    await(comm, in[k]);
    await(comm, out[k]);
  }
  std::vector<double> gaps_s;
  for (std::size_t k = 1; k < messages; ++k) gaps_s.push_back(in[k].end_s - in[k - 1].end_s);
  return {.latency_s = me < peer ? median(round_trips) / 2 : 0,
          .bandwidth = static_cast<double>(elements * sizeof(float)) / median(gaps_s)};
}

/// By (from, to), known to all ranks; the links of one pair of neighbours after the other's.
links_of_ranks measure_links(communicator_type& comm) {
  links_of_ranks links;
  for (int i = 0; i + 1 < comm.ranks(); ++i) {
    hetsched::link to_me;
    if (comm.rank() == i || comm.rank() == i + 1) to_me = measure_link(comm, comm.rank() == i ? i + 1 : i);
    const auto all = gathered(comm, {to_me.latency_s, to_me.bandwidth});
    const auto at = static_cast<std::size_t>(i);
    links[{i, i + 1}] = {.latency_s = all[at][0], .bandwidth = all[at + 1][1]};
    links[{i + 1, i}] = {.latency_s = all[at][0], .bandwidth = all[at][1]};
  }
  return links;
}

/// The timelines of all ranks as one, on every rank.
timeline whole(communicator_type& comm, const timeline& mine) {
  std::vector<double> numbers;
  for (const auto& a : mine.actions)
    for (const double n : {double(a.what.kind), double(a.what.stage), double(a.what.microbatch), double(a.rank), double(a.peer),
                           a.start_s, a.end_s})
      numbers.push_back(n);
  std::vector<timeline> parts;
  for (const auto& theirs : gathered(comm, numbers)) {
    timeline part{mine.ranks, mine.microbatches, {}};
    for (std::size_t k = 0; k + 6 < theirs.size(); k += 7) {
      const auto number = [&](std::size_t i) { return static_cast<int>(theirs[k + i]); };
      part.actions.push_back({{.kind = static_cast<action_kind>(number(0)), .stage = number(1), .microbatch = number(2)},
                              number(3),
                              number(4),
                              theirs[k + 5],
                              theirs[k + 6]});
    }
    parts.push_back(std::move(part));
  }
  return merged(parts);
}

struct run_figures {
  timeline_figures found;
  timeline times;
};

/// One step over `travel`, seen by all ranks.
template <class Communicator>
run_figures run(communicator_type& comm, const Communicator& travel, const schedule& order, const arguments& given,
                std::size_t elements) {
  const bool last = comm.rank() + 1 == comm.ranks();
  std::vector<timed_layer> stages(1);
  stages[0] = {.forward_s = given.compute_s / 3,
               .backward_s = given.compute_s * 2 / 3,
               .output = last ? 1 : elements,
               .spin = given.spin,
               .none = {}};
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(comm.ranks()) - 1, tensor_shape{elements});
  pipeline_executor<block, timed_layer, Communicator> executor(order, stages, boundaries, travel, {.deadline_s = 120});
  std::vector<block> inputs;
  std::vector<float> targets;
  for (int m = 0; m < order.microbatches; ++m) {
    inputs.emplace_back(tensor_shape{1});
    inputs.back().data()[0] = static_cast<float>(100 * m);
    targets.push_back(static_cast<float>(100 * m + order.stages));
  }
  (void)gathered(comm, {});  // begin together
  executor.step(std::span<const block>(inputs), std::span<const float>(targets), [](const block& y, float wanted) {
    if (y.data()[0] != wanted) throw std::runtime_error("a tensor is not the one that was sent");
    loss_value<block> loss{.value = 0, .gradient = block({1})};
    loss.gradient.data()[0] = 0;
    return loss;
  });
  run_figures result;
  result.times = whole(comm, executor.measured());
  result.found = figures(from_departure(result.times));
  return result;
}

template <class Communicator>
void compare(communicator_type& comm, const Communicator& travel, const links_of_ranks& links, const arguments& given) {
  const bool tells = comm.rank() == 0;
  if (tells) {
    std::printf(
        "%d ranks, %d microbatches, compute %.0f ms per microbatch and stage (a third of it forward, %s), median of %d\n\n",
        comm.ranks(), given.microbatches, given.compute_s * 1e3, given.spin ? "spinning" : "sleeping", given.repeats);
    for (const auto& [ends, l] : links)
      std::printf("link from rank %d to %d: %.3f ms, %.1f Mbit/s\n", ends.first, ends.second, l.latency_s * 1e3,
                  l.bandwidth * 8e-6);
    std::printf(
        "\n| c / t_max | schedule | warm-ups | predicted | measured | spread | off by | overlap predicted | measured | "
        "faster than 1F1B |\n"
        "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  }
  std::size_t bytes_to_next = 0;
  double slowest = 0, worst = 0;
  for (const auto& [ends, l] : links) slowest = slowest == 0 ? l.bandwidth : std::min(slowest, l.bandwidth);
  for (const double ratio : given.ratios) {
    const auto boundaries = static_cast<std::size_t>(comm.ranks()) - 1, ranks = boundaries + 1;
    const auto elements = static_cast<std::size_t>(ratio * given.compute_s * slowest / sizeof(float));
    pipeline nominal{.forward_s = std::vector<double>(ranks, given.compute_s / 3),
                     .backward_s = std::vector<double>(ranks, given.compute_s * 2 / 3),
                     .transfer_s = std::vector<double>(boundaries, ratio * given.compute_s)};
    auto real = nominal;
    real.gradient_transfer_s = real.transfer_s;
    for (std::size_t i = 0; i < boundaries; ++i) {
      const int at = static_cast<int>(i);
      const auto seconds = [&](int from, int to) {
        const auto& l = links.at({from, to});
        return l.latency_s + static_cast<double>(elements * sizeof(float)) / l.bandwidth;
      };
      real.transfer_s[i] = seconds(at, at + 1);
      real.gradient_transfer_s[i] = seconds(at + 1, at);
    }
    double of_1f1b_s = 0;
    for (const auto& name : given.schedules) {
      const auto order = build_schedule(name, nominal, given.microbatches);
      const auto predicted = simulate(real, order);
      std::vector<double> makespans, overlaps;
      for (int k = 0; k < given.repeats; ++k) {
        const auto one = run(comm, travel, order, given, elements);
        bytes_to_next += static_cast<std::size_t>(order.microbatches) * elements * sizeof(float);
        makespans.push_back(one.found.makespan_s);
        overlaps.push_back(one.found.overlap_ratio);
        if (tells && k == 0 && !given.trace.empty()) {
          const auto file = given.trace + name + "_" + std::to_string(static_cast<int>(100 * ratio));
          std::ofstream(file + "_measured.json") << chrome_trace(one.times);
          std::ofstream(file + "_predicted.json") << chrome_trace(predicted.timeline);
        }
      }
      const double measured_s = median(makespans);
      const auto [least, most] = std::minmax_element(makespans.begin(), makespans.end());
      if (name == "1f1b") of_1f1b_s = measured_s;
      const double off = deviation(predicted.makespan_s, measured_s);
      worst = std::max(worst, std::abs(off));
      if (!tells) continue;
      std::string counts;
      for (const int n : warmup_counts(order)) counts += (counts.empty() ? "" : " ") + std::to_string(n);
      const auto faster = of_1f1b_s > 0 ? detail::print("%.2f times", of_1f1b_s / measured_s) : std::string("-");
      std::printf("| %.2f | %s | %s | %.3f s | %.3f s | %.1f %% | %+.1f %% | %.1f %% | %.1f %% | %s |\n", ratio, name.c_str(),
                  counts.c_str(), predicted.makespan_s, measured_s, 100 * (*most - *least) / measured_s, 100 * off,
                  100 * predicted.overlap_ratio, 100 * median(overlaps), faster.c_str());
      std::fflush(stdout);
    }
  }
  if (tells)
    std::printf("\nfarthest off: %.1f %%\nrank 0 has sent %zu MiB of activations to rank 1\n", 100 * worst, bytes_to_next >> 20);
  (void)gathered(comm, {});  // nobody leaves before the others have finished
}

void bench(const arguments& given) {
  communicator_type comm(place_from_environment(),
                         {.rendezvous = given.rendezvous, .store = {}, .run = {}, .interface = {}, .address = given.address});
  if (given.rehearsed <= 0) return compare(comm, comm, measure_links(comm), given);
  links_of_ranks links;
  for (int i = 0; i + 1 < comm.ranks(); ++i)
    links[{i, i + 1}] = links[{i + 1, i}] = {.latency_s = 0, .bandwidth = given.rehearsed / 8};
  const shaped_communicator<communicator_type> slower(comm, [&](int, int) { return links.begin()->second; });
  compare(comm, slower, links, given);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns, that sleeping layers wake up in time
  try {
    bench(read(argc, argv));
    return 0;
  } catch (const input_error& e) {
    std::fprintf(stderr, "links_bench: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "links_bench: %s\n", e.what());
    return 3;
  }
}
