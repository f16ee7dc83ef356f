// SPDX-License-Identifier: Apache-2.0
// Modules of LibTorch on GPUs, but that these are of the host's memory: their streams do nothing before somebody waits for it,
// torch works behind them at once, and what torch gives back to its allocator is rubbish from then on.
#include <torch/torch.h>

// Of c10's logging, which has the names of the test's.
#undef CHECK

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/hetsched.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/torch.hpp>
#include <hetsched/torch/device.hpp>

namespace {

struct late_gpus {
  struct stream_state {
    std::deque<std::function<void()>> to_do;
    std::uint64_t enqueued = 0, done = 0;
  };
  struct event_state {
    stream_state* of = nullptr;
    std::uint64_t point = 0;
  };
  using stream = stream_state*;
  using event = event_state*;
  using pool = int*;
  static inline std::recursive_mutex guard;
  static inline std::list<stream_state> streams;
  static inline thread_local int current = 0;

  static void run(stream s, std::uint64_t until) {
    while (s->done < until) {
      const auto work = std::move(s->to_do.front());
      s->to_do.pop_front();
      ++s->done;
      work();
    }
  }
  static int enqueue(stream s, std::function<void()> work) {
    const std::lock_guard hold(guard);
    s->to_do.push_back(std::move(work));
    ++s->enqueued;
    return 0;
  }
  static void* rubbish(std::size_t bytes) {
    void* const made = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(made, 0xff, bytes);  // not a number
    return made;
  }
  static void give_back(void* memory) {
    std::memset(memory, 0xff, malloc_usable_size(memory));
    std::free(memory);
  }

  static int device_count(int& count) { return count = 2, 0; }
  static int get_device(int& device) { return device = current, 0; }
  static int set_device(int device) { return current = device, 0; }
  static int has_context(int, bool& has) { return has = true, 0; }
  static int create_stream(stream& s) {
    const std::lock_guard hold(guard);
    return s = &streams.emplace_back(), 0;
  }
  static int destroy_stream(stream s) { return synchronize(s); }
  static int create_event(event& e) { return e = new event_state, 0; }
  static int destroy_event(event e) { return delete e, 0; }
  static int create_timed_event(event& e) { return create_event(e); }
  static int record(event e, stream s) {
    const std::lock_guard hold(guard);
    return *e = {s, s->enqueued}, 0;
  }
  static int elapsed(double& seconds, event, event) { return seconds = 0, 0; }
  static int wait(stream s, event e) {
    const std::lock_guard hold(guard);
    return enqueue(s, [known = *e] {
      if (known.of) run(known.of, known.point);
    });
  }
  static int query(event e) {
    const std::lock_guard hold(guard);
    if (!e->of || e->of->done >= e->point) return 0;
    return run(e->of, e->point), 600;  // there when it is asked for again
  }
  static int synchronize(stream s) {
    const std::lock_guard hold(guard);
    return run(s, s->enqueued), 0;
  }
  static int create_pool(int, pool& p) { return p = new int, 0; }
  static int destroy_pool(pool p) { return delete p, 0; }
  static int allocate(void*& made, std::size_t bytes, pool, stream) { return made = rubbish(bytes), 0; }
  static int free(void* memory, stream s) {
    return enqueue(s, [memory] { give_back(memory); });
  }
  static int allocate_pinned(void*& made, std::size_t bytes) { return made = rubbish(bytes), 0; }
  static int free_pinned(void* memory) { return give_back(memory), 0; }
  static int copy(void* to, const void* from, std::size_t bytes, stream s) {
    return enqueue(s, [=] { std::memcpy(to, from, bytes); });
  }
  static int copy_peer(void* to, int, const void* from, int, std::size_t bytes, stream s) { return copy(to, from, bytes, s); }
  static int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                       std::size_t rows, stream s) {
    return enqueue(s, [=] {
      for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, bytes);
    });
  }
  static int set_zero(void* memory, std::size_t bytes, stream s) {
    return enqueue(s, [=] { std::memset(memory, 0, bytes); });
  }
  static int share_pool(pool, int, int, bool& shared) { return shared = true, 0; }
  static void begin_range(const char*) {}
  static void end_range() {}
  static std::string error_text(int) { return "an error"; }
};

struct late_place {
  using api = late_gpus;
  static c10::Device device(int) { return at::kCPU; }
  struct scope {
    explicit scope(const hetsched::cuda_queue<api>& q) { q.finish(); }
  };
};

/// In place of torch's allocator.
struct spoiling_allocator : c10::Allocator {
  spoiling_allocator() : before(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~spoiling_allocator() override { c10::SetCPUAllocator(before, 1); }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &nothing, at::kCPU};
    void* const made = late_gpus::rubbish(bytes);
    return {made, made, &late_gpus::give_back, at::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  static void nothing(void*) {}
  c10::Allocator* before;
};

namespace nn = torch::nn;
using device_tensor = hetsched::torch_device_tensor<late_place>;
using device_layer = hetsched::torch_device_layer<late_place>;
constexpr int deep = 4, wide = 8, batch_rows = 4, batches = 8;

/// Every second layer drops some of its numbers.
std::shared_ptr<nn::SequentialImpl> tanh_of(int layer) {
  return hetsched::torch_seeded(static_cast<std::uint64_t>(layer) + 1, [&] {
    nn::Sequential net(nn::Linear(wide, wide), nn::Tanh());
    if (layer % 2 == 1) net->push_back(nn::Dropout(0.25));
    return net.ptr();
  });
}
std::vector<torch::Tensor> batch_of(int step) {
  std::vector<torch::Tensor> all;
  for (int m = 0; m < batches; ++m)
    all.push_back(torch::sin(torch::arange(1.0 * batch_rows * wide).view({batch_rows, wide}) * (m + 1) + step).to(torch::kFloat));
  return all;
}
torch::Tensor half_apart(const torch::Tensor& y, const torch::Tensor& x) { return (y - 0.5 * x).square().mean(); }
const hetsched::torch_optimizer<torch::optim::AdamW> adamw{torch::optim::AdamWOptions(1e-2)};
hetsched::tensor_shape shape_of_all(int) { return {batch_rows, wide}; }

/// Losses of three steps; step(trainer, batch, own rows) -> loss.
template <class Trainer, class Step>
std::vector<double> losses_by(Trainer& trainer, const Step& step) {
  std::vector<double> losses;
  for (int s = 0; s < 3; ++s) {
    auto all = batch_of(s);
    const auto own = trainer.samples();
    for (auto& t : all) t = t.narrow(0, own.first, own.size());
    losses.push_back(step(all));
  }
  return losses;
}

std::vector<double> losses_on_hosts(const hetsched::training_layout& layout, int ranks) {
  std::vector<double> losses;
  using channels = hetsched::thread_communicator<torch::Tensor>;
  hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<torch::Tensor>(
        layout, [](int layer) { return hetsched::torch_layer<>(tanh_of(layer)); }, shape_of_all, channel, adamw);
    const auto found = losses_by(trainer, [&](const std::vector<torch::Tensor>& all) {
      return trainer.step(all, all, hetsched::torch_loss(half_apart)).loss;
    });
    if (channel.rank() == 0) losses = found;
  });
  return losses;
}

std::vector<double> losses_on(const std::vector<int>& places, const hetsched::training_layout& layout) {
  std::vector<double> losses;
  using channels = hetsched::cuda_local_communicator<device_tensor, late_gpus>;
  hetsched::cuda_devices<late_gpus> gpus;
  hetsched::run_on_threads(channels::connect(gpus, places), [&](channels& channel) {
    const auto rank = channel.rank();
    const hetsched::cuda_backend<late_gpus> own(gpus, places[static_cast<std::size_t>(rank)], "rank " + std::to_string(rank));
    const auto q = own.compute_queue();
    auto trainer = hetsched::make_trainer<device_tensor>(
        layout, [&](int layer) { return device_layer(tanh_of(layer), q); }, shape_of_all, channel, adamw, {}, own);
    const auto found = losses_by(trainer, [&](const std::vector<torch::Tensor>& all) {
      std::vector<device_tensor> there;
      for (const auto& t : all) there.push_back(device_tensor::of(t, q));
      return trainer
          .step(std::span<const device_tensor>(there), std::span<const device_tensor>(there),
                hetsched::torch_device_loss<late_place>(half_apart))
          .loss;
    });
    if (rank == 0) losses = found;
  });
  return losses;
}

}  // namespace

TEST_CASE("torch: modules on GPUs, and on GPUs and hosts, train with the bits of hosts") {
  torch::set_num_threads(1);
  const auto layout_of = [](const hetsched::schedule& order) { return hetsched::even_layout(deep, order, batch_rows); };
  const auto one = layout_of(hetsched::gpipe(1, batches)), two = layout_of(hetsched::zb_h1(2, batches)),
             four = layout_of(hetsched::interleaved_1f1b(2, 2, batches));
  auto shared = layout_of(hetsched::gpipe(2, batches));
  shared.pipelines[0].groups.assign(2, {.degrees = {.data = 2}});
  const auto expected = losses_on_hosts(one, 1), apiece = losses_on_hosts(shared, 4);
  CHECK(expected.back() < expected.front());
  const spoiling_allocator spoils;
  CHECK(losses_on({0}, one) == expected);
  CHECK(losses_on({0, 1}, two) == expected);
  CHECK(losses_on({1, -1}, two) == expected);
  CHECK(losses_on({0, 1}, four) == expected);
  CHECK(losses_on({0, 0, 1, 1}, shared) == apiece);
}

TEST_CASE("torch: a result on a GPU keeps torch's memory until other queues have done with it") {
  const spoiling_allocator spoils;
  hetsched::cuda_devices<late_gpus> gpus;
  const auto q = gpus.make_queue(0, "computations"), other = gpus.make_queue(0, "copies");
  device_layer layer(nn::Linear(2, 2).ptr(), q);
  device_layer::context c;
  hetsched::cuda_buffer<late_gpus> copied(other, 4 * sizeof(float));
  const auto x = device_tensor::of(torch::ones({2, 2}), q);
  std::vector<float> seen;
  {
    const auto y = layer.forward(x, c, q);
    const auto there = y.view(q);
    seen.assign(there.const_data_ptr<float>(), there.const_data_ptr<float>() + 4);
    hetsched::work_on(other, {&y.buffer()}, {&copied}, [&] { hetsched::enqueue_copy(other, copied, y.buffer()); });
  }
  other.finish();
  CHECK(std::memcmp(copied.data(), seen.data(), copied.bytes()) == 0);
}

TEST_CASE("torch: what does not fit on a GPU is told") {
  hetsched::cuda_devices<late_gpus> gpus;
  const auto q = gpus.make_queue(0, "computations");
  CHECK_THROWS_WITH_AS(device_tensor(torch::Tensor(), q), "a tensor is an undefined torch::Tensor", hetsched::input_error);
  CHECK_THROWS_WITH_AS(device_tensor(torch::ones({2}, torch::kLong), q), "a tensor is of Long on cpu, expected is Float on cpu",
                       hetsched::input_error);
  CHECK_THROWS_WITH_AS(device_tensor(torch::ones({2, 3}).t(), q), "a tensor is not contiguous: hand over t.contiguous()",
                       hetsched::input_error);
}
