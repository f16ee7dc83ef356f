// SPDX-License-Identifier: Apache-2.0
// Trains CUDA layers of your own on the GPUs at hand: eight gates y = tanh(x w), on one rank and in a pipeline of four.
// Build: nvcc -std=c++20 -O2 -I PREFIX/include own_layers.cu
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cuda.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>

using cuda = hetsched::cuda_runtime;
using queue = hetsched::cuda_queue<cuda>;
#define EACH(i) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
__global__ void add(int n, float* sum, const float* term) { EACH(i) sum[i] += term[i]; }
__global__ void scale(int n, float* x, float factor) { EACH(i) x[i] *= factor; }
__global__ void descend(int n, float* w, const float* dw, float rate) { EACH(i) w[i] -= rate * dw[i]; }
__global__ void fill(int n, float* x, float first, float step) { EACH(i) x[i] = first + step * (i % 7); }
__global__ void gate_forward(int n, const float* x, const float* w, float* y) { EACH(i) y[i] = tanhf(x[i] * w[i]); }
__global__ void gate_backward(int n, const float* x, const float* w, const float* dy, float* dx, float* dw) {
  EACH(i) dw[i] += dy[i] * (1 - tanhf(x[i] * w[i]) * tanhf(x[i] * w[i])) * x[i];
  EACH(i) dx[i] = dy[i] * (1 - tanhf(x[i] * w[i]) * tanhf(x[i] * w[i])) * w[i];
}
__global__ void half_squares(int n, float* y, const float* wanted, double* loss) {
  double sum = 0;  // of one thread: in one order, and not in *loss, which is memory of the host
  for (int i = 0; i < n; ++i) y[i] -= wanted[i], sum += 0.5 * y[i] * y[i];
  *loss = sum;
}
void each(auto kernel, const queue& q, auto... a) { kernel<<<64, 256, 0, q.stream()>>>(a...); }
struct tensor {  // your own: a shape and memory
  tensor() = default;
  tensor(const hetsched::tensor_shape& s, const queue& q) : extents(s), memory(q, s.back() * sizeof(float)) {}
  tensor(const hetsched::tensor_shape& s, const queue& q, float first, float step) : tensor(s, q) {
    each(fill, q, size(), data(), first, step);
  }
  const hetsched::tensor_shape& shape() const { return extents; }
  hetsched::cuda_buffer<cuda>& buffer() { return memory; }
  const hetsched::cuda_buffer<cuda>& buffer() const { return memory; }
  int size() const { return static_cast<int>(memory.bytes() / sizeof(float)); }
  float* data() const { return static_cast<float*>(memory.data()); }
  hetsched::tensor_shape extents;
  hetsched::cuda_buffer<cuda> memory;
};
template <>
struct hetsched::tensor_traits<tensor> : hetsched::cuda_tensor_traits<tensor, float, cuda> {
  static void add(tensor& sum, const tensor& term, const queue& q) {
    work_on(q, {&term.buffer()}, {&sum.buffer()}, [&] { each(::add, q, sum.size(), sum.data(), term.data()); });
  }
  static void scale(tensor& t, double factor, const queue& q) {
    work_on(q, {}, {&t.buffer()}, [&] { each(::scale, q, t.size(), t.data(), static_cast<float>(factor)); });
  }
};
struct gate {                     // your own layer: enqueues its work and returns
  using context = const tensor*;  // what a microbatch needs between forward and backward
  tensor forward(const tensor& x, context& c, const queue& q) {
    c = &x;
    tensor y(x.shape(), q);
    each(gate_forward, q, x.size(), x.data(), weight.data(), y.data());
    return y;
  }
  tensor backward(const tensor& dy, context& c, const queue& q) {
    tensor dx(dy.shape(), q);
    each(gate_backward, q, dy.size(), c->data(), weight.data(), dy.data(), dx.data(), gradient.data());
    return dx;
  }
  std::span<tensor> parameters() { return {&weight, 1}; }
  std::span<tensor> gradients() { return {&gradient, 1}; }
  tensor weight, gradient;
};
struct descent {  // your own optimizer
  static std::string_view name() { return "descent"; }
  static std::span<const std::string_view> state_names() { return {}; }
  void update(tensor& w, tensor& dw, std::span<tensor>, const hetsched::parameter_id&, long, const queue& q) const {
    work_on(q, {&dw.buffer()}, {&w.buffer()}, [&] { each(descend, q, w.size(), w.data(), dw.data(), 0.1f); });
  }
};

std::vector<double> train(hetsched::cuda_devices<cuda>& gpus, int ranks) {  // losses by step
  using channels = hetsched::cuda_local_communicator<tensor, cuda>;
  const hetsched::tensor_shape shape{4096};
  std::vector<int> warmups, places;
  for (int r = 0; r < ranks; ++r) warmups.push_back(ranks - r), places.push_back(r % gpus.count());
  const auto loss = [](tensor y, const tensor& wanted, const queue& q, double& value) {
    half_squares<<<1, 1, 0, q.stream()>>>(y.size(), y.data(), wanted.data(), &value);
    return y;  // the gradient is where the output was
  };
  std::vector<double> losses;
  hetsched::run_on_threads(channels::connect(gpus, places), [&](channels& channel) {
    hetsched::cuda_backend own(gpus, places[channel.rank()], "rank " + std::to_string(channel.rank()));
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    auto trainer = hetsched::make_trainer<tensor>(
        hetsched::even_layout(8, hetsched::one_f_one_b(warmups, 8)),
        [&](int l) { return gate(tensor(shape, q, 1 + 0.05f * l, 0.01f), tensor(shape, q, 0, 0)); },
        [&](int, int) { return shape; }, channel, descent{}, {}, own);
    std::vector<tensor> inputs, targets;
    for (int m = 0; m < 8; ++m) {
      inputs.emplace_back(shape, q, 0.1f * m, 0.02f);
      targets.emplace_back(shape, q, 0.5f, 0.0f);
    }
    for (int step = 0; step < 20; ++step) {
      const auto done = trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), loss);
      if (channel.rank() == 0) losses.push_back(done.loss);
    }
  });
  return losses;
}

int main() try {
  hetsched::cuda_devices<cuda> gpus;
  const auto piped = train(gpus, 4), alone = train(gpus, 1);
  std::printf("loss %.6f: %s\n", alone.back(), piped == alone ? "the same bits on 4 ranks and one" : "other bits");
  return piped == alone ? 0 : 1;
} catch (const hetsched::error& e) {
  return std::printf("%s\n", e.what()), 2;
}
