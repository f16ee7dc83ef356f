// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>

#include <gpt/optimizer.hpp>
#include <gpt_cuda/description.hpp>
#include <gpt_cuda/tensor.hpp>

namespace gpt_cuda {

template <class Api>
using any_layer = hetsched::any_layer<tensor<Api>, hetsched::cuda_queue<Api>>;

/// A rank's end of an axis, whatever connects the GPUs: collectives of whole tensors on a queue, of parts of one size unless
/// their elements are counted.
template <class Api>
struct group_axis {
  using queue = hetsched::cuda_queue<Api>;
  int rank = 0, size = 1;
  std::function<void(const tensor<Api>& mine, tensor<Api>& all, const queue& q)> all_gather = {};
  std::function<void(const tensor<Api>& all, tensor<Api>& mine, const queue& q)> reduce_scatter = {};
  std::function<void(const tensor<Api>& send, std::span<const std::size_t> sent, tensor<Api>& receive,
                     std::span<const std::size_t> received, const queue& q)>
      all_to_all = {};
};
/// Of an axis of a hetsched::stage_group.
template <class Api, class Axis>
[[nodiscard]] group_axis<Api> group_axis_of(const Axis& axis) {
  using queue = hetsched::cuda_queue<Api>;
  group_axis<Api> made{.rank = axis.rank(), .size = axis.size()};
  if constexpr (requires(const tensor<Api>& in, tensor<Api>& out, const queue& q) { axis.all_gather(in, out, q); }) {
    made.all_gather = [axis](const tensor<Api>& mine, tensor<Api>& all, const queue& q) { axis.all_gather(mine, all, q); };
    made.reduce_scatter = [axis](const tensor<Api>& all, tensor<Api>& mine, const queue& q) {
      axis.reduce_scatter(all, mine, q);
    };
    made.all_to_all = [axis](const tensor<Api>& send, std::span<const std::size_t> sent, tensor<Api>& receive,
                             std::span<const std::size_t> received,
                             const queue& q) { axis.all_to_all(send, sent, receive, received, q); };
  }
  return made;
}

/// What a rank has of a layer.
template <class Api>
struct layer_part {
  std::vector<numbers> first = {};                 ///< values of its parameters, in the order of gpt::make_layer
  std::vector<hetsched::parameter_cut> cuts = {};  ///< of them; none: whole
  group_axis<Api> axis = {};                       ///< of tensor ranks
  group_axis<Api> context = {}, expert = {};
};

/// What kernels do, on a queue. Defined in layers.hpp and timing.hpp, which only the file has to see that is compiled with them.
template <hetsched::cuda_api Api>
struct operations {
  using queue = hetsched::cuda_queue<Api>;
  static void add(tensor<Api>& sum, const tensor<Api>& term, const queue& q);
  static void scale(tensor<Api>& t, double factor, const queue& q);
  /// See hetsched::detail::squares_on_queue.
  static void squares(const tensor<Api>& t, const hetsched::strided_runs& at, const queue& q, double* told);
  /// All of a rank, in one kernel or a few, which write what products take of them, too.
  static void update(const hetsched::adamw& a, std::span<const hetsched::parameter_update<tensor<Api>>> all, const queue& q);
  static void update(const hetsched::sgd& s, std::span<const hetsched::parameter_update<tensor<Api>>> all, const queue& q);
  /// See gpt::cross_entropy_part; a loss for the executor, which needs one more number for each row.
  static tensor<Api> cross_entropy_part(tensor<Api> logits, const tensor<Api>& targets, std::size_t all_rows, const queue& q,
                                        double& value);
  /// Layer 0 is the embedding, then come blocks, then the head. `m`: of the whole model.
  static any_layer<Api> make_layer(const shape& m, int layer, const layer_part<Api>& part, const queue& q);
  /// Times one layer of each kind on a GPU, or on the host where `place` is -1, by events where it is a GPU; the loss counts as
  /// the last forward's. Returns one entry per layer of the model. Throws: cuda_error.
  static std::vector<layer_costs> time_layers(hetsched::cuda_devices<Api>& devices, int place, const timing& t);
};

/// The library's optimizers, on queues.
template <class Api>
struct optimizer : gpt::chosen_optimizer {
  void update(tensor<Api>& p, tensor<Api>& gradient, std::span<tensor<Api>> state, const hetsched::parameter_id& which,
              std::int64_t updates, const hetsched::cuda_queue<Api>& q) const {
    const hetsched::parameter_update<tensor<Api>> one{&p, &gradient, state, which, updates};
    update_all(std::span(&one, 1), q);
  }
  void update_all(std::span<const hetsched::parameter_update<tensor<Api>>> all, const hetsched::cuda_queue<Api>& q) const {
    std::visit([&](const auto& o) { operations<Api>::update(o, all, q); }, own);
  }
};

/// Numbers on a queue. Waits for nothing but, now and then, pinned memory.
template <class Api>
[[nodiscard]] tensor<Api> upload(const hetsched::cuda_queue<Api>& q, const numbers& from) {
  const hetsched::cuda_queue<Api> host(q.devices());
  tensor<Api> pinned(from.rows, from.columns, host);
  pinned.buffer().host_access(true);
  if (!from.values.empty()) std::memcpy(pinned.data(), from.values.data(), from.values.size() * sizeof(float));
  if (q.on_host()) return pinned;
  auto made = hetsched::tensor_traits<tensor<Api>>::make({from.rows, from.columns}, q);
  hetsched::tensor_traits<tensor<Api>>::assign(made, pinned, q);
  return made;
}
/// Waits for all that is on the queue.
template <class Api>
[[nodiscard]] numbers download(const hetsched::cuda_queue<Api>& q, const tensor<Api>& from) {
  const hetsched::cuda_queue<Api> host(q.devices());
  tensor<Api> pinned(from.shape()[0], from.shape()[1], host);
  hetsched::tensor_traits<tensor<Api>>::assign(pinned, from, q);
  q.finish();
  numbers found{from.shape()[0], from.shape()[1], std::vector<float>(static_cast<std::size_t>(from.size()))};
  pinned.buffer().host_access(false);
  if (!found.values.empty()) std::memcpy(found.values.data(), pinned.data(), found.values.size() * sizeof(float));
  return found;
}

}  // namespace gpt_cuda

template <class Api>
struct hetsched::tensor_traits<gpt_cuda::matrix<Api, float>>
    : hetsched::cuda_tensor_traits<gpt_cuda::matrix<Api, float>, float, Api> {
  using tensor = gpt_cuda::matrix<Api, float>;
  static void add(tensor& sum, const tensor& term, const hetsched::cuda_queue<Api>& q) {
    gpt_cuda::operations<Api>::add(sum, term, q);
  }
  static void scale(tensor& t, double factor, const hetsched::cuda_queue<Api>& q) {
    gpt_cuda::operations<Api>::scale(t, factor, q);
  }
  static void squares(const tensor& t, const hetsched::strided_runs& at, const hetsched::cuda_queue<Api>& q, double* told) {
    gpt_cuda::operations<Api>::squares(t, at, q, told);
  }
};
template <class Api>
struct hetsched::tensor_traits<gpt_cuda::halves<Api>> : hetsched::cuda_tensor_traits<gpt_cuda::halves<Api>, gpt_cuda::bf16, Api> {
};
