// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/device/device_backend.hpp>

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

#include "../small_layer.hpp"

namespace {

using namespace hetsched;
using test::small_layer;
using test::small_tensor;

/// Notes what is asked of it.
struct noting_queue {
  struct moment {
    [[nodiscard]] static bool reached() { return true; }
  };
  std::shared_ptr<std::string> notes = std::make_shared<std::string>();
  [[nodiscard]] moment record() const { return *notes += "record ", moment(); }
  void wait(const moment&) const { *notes += "wait "; }
  void finish() const { *notes += "finish "; }
};

static_assert(device_queue<host_queue> && device_queue<noting_queue>);
static_assert(device_backend<host_backend>);
struct without_record {
  using moment = host_queue::moment;
  void wait(const moment&) const;
  void finish() const;
};
static_assert(!device_queue<without_record>);
struct of_integers : host_backend {
  static std::vector<int> make_numbers(std::size_t);
};
static_assert(!device_backend<of_integers>);

/// y = x, on a queue.
struct queued_layer {
  struct context {};
  static small_tensor forward(const small_tensor& x, context&, const noting_queue& q) { return *q.notes += "forward ", x; }
  static small_tensor backward(const small_tensor& dy, context&, const noting_queue& q) { return *q.notes += "backward ", dy; }
  std::array<small_tensor, 1>& parameters() { return parameter; }
  std::array<small_tensor, 1>& gradients() { return parameter; }
  std::array<small_tensor, 1> parameter;
};

static_assert(pipeline_layer<queued_layer, small_tensor, noting_queue>);
static_assert(!pipeline_layer<queued_layer, small_tensor>);  // the host's ranks have no such queue
static_assert(pipeline_layer<small_layer, small_tensor, noting_queue>);
static_assert(!split_layer<queued_layer, small_tensor, noting_queue>);

/// A forward, a backward and a weight half of a stage; what it asked of its queue.
template <class Stage>
std::string notes_of(Stage stage) {
  noting_queue q;
  auto c = detail::make_context(stage);
  const small_tensor x;
  (void)detail::forward<small_tensor>(stage, x, c, q);
  *q.notes += "| ";
  (void)detail::backward_input<small_tensor>(stage, x, c, q);
  *q.notes += "| ";
  detail::backward_weight<small_tensor>(stage, x, c, q);
  return *q.notes;
}

}  // namespace

TEST_CASE("layers get the queue if they take one; the others find everything done") {
  CHECK(notes_of(queued_layer()) == "forward | backward | ");
  CHECK(notes_of(small_layer()) == "finish | finish | ");
  using any = any_layer<small_tensor, noting_queue>;
  CHECK(notes_of(any(queued_layer())) == "forward | backward | ");
  CHECK(notes_of(any(small_layer())) == "finish | finish | ");
  CHECK(notes_of(layer_tuple<small_tensor, queued_layer, small_layer>({}, {})) == "forward finish | finish backward | ");
  std::vector<any> layers;
  layers.emplace_back(small_layer());
  layers.emplace_back(queued_layer());
  CHECK(notes_of(layer_list<small_tensor, any, noting_queue>(std::move(layers))) == "finish forward | backward finish | ");
}
