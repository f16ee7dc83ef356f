// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/io/json/graph_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>

namespace hetsched::detail {

inline constexpr std::size_t max_graph_nodes = 100'000;

inline constexpr int max_dimensions = 16;

[[nodiscard]] inline std::vector<std::int64_t> read_shape(const json_value& value) {
  if (value.size() > max_dimensions) value.expected("at most " + std::to_string(max_dimensions) + " dimensions");
  return value.list([](const json_value& size) { return size.integer(1, std::int64_t{1} << 40); });
}

// Reads one node of a graph.json after another.
class graph_reader {
 public:
  explicit graph_reader(tensor_graph& graph) : graph_(graph) {}

  void read(const json_value& node) {
    node.object({"name", "op", "shape", "inputs", "transpose", "batch_dimension", "permutation", "window", "stride", "padding",
                 "choices", "segment", "capacity"});
    const auto name = node.at("name").name();
    if (known_.count(name) != 0) node.at("name").fail("the name \"" + name + "\" appears twice");
    const auto kind = node.at("op");
    const auto op = kind.text();
    const auto inputs = inputs_of(node);
    const auto takes = [&](std::size_t low, std::size_t high) {
      if (inputs.size() >= low && inputs.size() <= high) return;
      const auto wanted = std::to_string(low) + (low == high ? "" : " to " + std::to_string(high));
      (node.has("inputs") ? node.at("inputs") : node)
          .fail(op + ": found " + std::to_string(inputs.size()) + " inputs, expected " + wanted);
    };
    const auto only = [&](const char* key, bool fits) {
      if (node.has(key) && !fits) node.at(key).fail(op + " has no " + key);
    };
    only("transpose", op == "matmul");
    only("batch_dimension", op == "placeholder");
    only("permutation", op == "transpose");
    only("shape", op == "placeholder" || op == "parameter" || op == "reshape" || op == "expand");
    const bool pooling = op == "max_pool2d" || op == "avg_pool2d";
    only("window", pooling);
    for (const char* key : {"stride", "padding"}) only(key, pooling || op == "conv2d");
    for (const char* key : {"choices", "capacity"}) only(key, op == "route");
    const auto number = [&](const char* key, std::int64_t low, std::int64_t otherwise) {
      const auto given = node.find(key);
      return given ? given->integer(low, std::int64_t{1} << 30) : otherwise;
    };
    try {
      if (op == "placeholder") {
        takes(0, 0);
        const auto shape = read_shape(node.at("shape"));
        const auto batch = node.find("batch_dimension");
        add_placeholder(graph_, name, shape, batch ? batch->count(0, std::max(0, static_cast<int>(shape.size()) - 1)) : 0);
      } else if (op == "parameter") {
        takes(0, 0);
        add_parameter(graph_, name, read_shape(node.at("shape")));
      } else if (op == "matmul") {
        takes(2, 2);
        bool transposed[2] = {false, false};
        if (const auto given = node.find("transpose"))
          for (std::size_t i = 0; i < given->sized(2, "input").size(); ++i) transposed[i] = (*given)[i].boolean();
        add_matmul(graph_, name, inputs[0], inputs[1], transposed[0], transposed[1]);
      } else if (op == "softmax") {
        takes(1, 1);
        add_softmax(graph_, name, inputs[0]);
      } else if (op == "layernorm") {
        takes(1, 3);
        add_layernorm(graph_, name, inputs);
      } else if (op == "embedding") {
        takes(2, 2);
        add_embedding(graph_, name, inputs[0], inputs[1]);
      } else if (op == "reshape") {
        takes(1, 1);
        add_reshape(graph_, name, inputs[0], read_shape(node.at("shape")));
      } else if (op == "expand") {
        takes(1, 1);
        add_expand(graph_, name, inputs[0], read_shape(node.at("shape")));
      } else if (op == "conv2d") {
        takes(2, 2);
        add_convolution(graph_, name, inputs[0], inputs[1], number("stride", 1, 1), number("padding", 0, 0));
      } else if (pooling) {
        takes(1, 1);
        const auto sides = node.at("window").sized(2, "side");
        image_window window{sides[0].integer(1, 1 << 20), sides[1].integer(1, 1 << 20)};
        window.stride = number("stride", 1, window.height);
        window.padding = number("padding", 0, 0);
        add_pooling(graph_, name, inputs[0], op == "max_pool2d", window);
      } else if (op == "route") {
        takes(1, 1);
        add_route(graph_, name, inputs[0], number("choices", 1, 1), node.at("capacity").integer(1, std::int64_t{1} << 30));
      } else if (op == "dispatch" || op == "combine") {
        takes(2, 3);
        const int gates = inputs.size() > 2 ? inputs[2] : -1;
        op == "dispatch" ? add_dispatch(graph_, name, inputs[0], inputs[1], gates)
                         : add_combine(graph_, name, inputs[0], inputs[1], gates);
      } else if (op == "transpose") {
        takes(1, 1);
        add_transpose(graph_, name, inputs[0], permutation_of(node, static_cast<int>(graph_.at(inputs[0]).shape.size())));
      } else if (op == "sum") {
        takes(1, 1);
        add_sum(graph_, name, inputs[0]);
      } else if (is_one_of(op, unary_operators) || is_one_of(op, binary_operators)) {
        const std::size_t count = is_one_of(op, unary_operators) ? 1 : 2;
        takes(count, count);
        add_elementwise(graph_, name, op, inputs, linear_inputs(op));
      } else {
        std::vector<std::string_view> known{"placeholder", "parameter", "matmul",   "softmax", "layernorm", "embedding",
                                            "reshape",     "transpose", "sum",      "expand",  "conv2d",    "max_pool2d",
                                            "avg_pool2d",  "route",     "dispatch", "combine"};
        known.insert(known.end(), unary_operators.begin(), unary_operators.end());
        known.insert(known.end(), binary_operators.begin(), binary_operators.end());
        kind.fail("unknown operator \"" + excerpt(op) + "\"; " + suggestion(op, known));
      }
    } catch (const file_error&) {
      throw;
    } catch (const input_error& wrong) {
      node.fail(wrong.what());
    }
    known_.emplace(name, graph_.size() - 1);
    const auto segment = node.find("segment");
    segments_.push_back(segment ? segment->count(0, 1000) : 0);
    named_ = named_ || segment;
  }

  // Of the nodes read; empty where none names one.
  [[nodiscard]] std::vector<int> segments() const { return named_ ? segments_ : std::vector<int>{}; }

  [[nodiscard]] int find(const std::string& name) const {
    const auto at = known_.find(name);
    return at == known_.end() ? -1 : at->second;
  }

 private:
  [[nodiscard]] std::vector<int> inputs_of(const json_value& node) const {
    const auto given = node.find("inputs");
    if (!given) return {};
    return given->list([&](const json_value& input) {
      const auto name = input.text();
      const int at = find(name);
      if (at < 0) input.fail("no node before this one is named \"" + excerpt(name) + "\"");
      return at;
    });
  }

  // Without one, the last two dimensions change places.
  [[nodiscard]] static std::vector<int> permutation_of(const json_value& node, int dimensions) {
    if (const auto given = node.find("permutation"))
      return given->list([&](const json_value& d) { return d.count(0, std::max(0, dimensions - 1)); });
    if (dimensions < 2) node.fail("transpose: expected an input of at least two dimensions");
    auto swapped = count_up(as_size(dimensions));
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    return swapped;
  }

  tensor_graph& graph_;
  std::map<std::string, int> known_;
  std::vector<int> segments_;
  bool named_ = false;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE graph_file parse_graph(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto top = document.format("graph", {"nodes", "dtype"});
  graph_file result;
  result.graph.format = format_of(detail::read_dtype(top.find("dtype"), {}).precision);
  const auto nodes = top.at("nodes");
  if (nodes.size() == 0 || nodes.size() > detail::max_graph_nodes)
    nodes.expected("1 to " + std::to_string(detail::max_graph_nodes) + " nodes");
  detail::graph_reader reader(result.graph);
  for (std::size_t i = 0; i < nodes.size(); ++i) reader.read(nodes[i]);
  result.loss = reader.find("loss");
  if (result.loss < 0) result.loss = result.graph.size() - 1;
  result.segments = reader.segments();
  return result;
}

}  // namespace hetsched
