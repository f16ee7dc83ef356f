// SPDX-License-Identifier: Apache-2.0
// Computes tensor graphs in double precision: on one device, and by a program on several, all in this process.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_images.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>
#include <hetsched/spmd/ratios.hpp>

namespace spmd_test {

using namespace hetsched;

struct tensor {
  std::vector<std::int64_t> shape{};
  std::vector<double> data{};

  explicit tensor(std::vector<std::int64_t> s = {}) : shape(std::move(s)), data(static_cast<std::size_t>(elements_of(shape))) {}
  [[nodiscard]] std::size_t at(const std::vector<std::int64_t>& index) const {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + index[d];
    return static_cast<std::size_t>(place);
  }
};

/// Calls visit with every index of a shape.
inline void each_index(const std::vector<std::int64_t>& shape,
                       const std::function<void(const std::vector<std::int64_t>&)>& visit) {
  std::vector<std::int64_t> index(shape.size());
  if (elements_of(shape) == 0) return;
  while (true) {
    visit(index);
    std::size_t d = shape.size();
    while (d-- > 0) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

inline double gauss(double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }

/// An elementwise operator and its slope.
inline double unary(const std::string& op, double x) {
  if (op == "relu") return x > 0 ? x : 0;
  if (op == "gelu") return x * gauss(x);
  if (op == "silu") return x / (1 + std::exp(-x));
  if (op == "sigmoid") return 1 / (1 + std::exp(-x));
  if (op == "tanh") return std::tanh(x);
  if (op == "exp") return std::exp(x);
  if (op == "abs") return std::abs(x);
  if (op == "neg") return -x;
  if (op == "square") return x * x;
  if (op == "scale") return 0.7 * x;
  if (op == "identity") return x;
  throw std::invalid_argument("not interpreted: " + op);
}
inline double slope(const std::string& op, double x) {
  if (op == "relu") return x > 0 ? 1 : 0;
  if (op == "gelu") return gauss(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  if (op == "silu") return unary("sigmoid", x) * (1 + x * (1 - unary("sigmoid", x)));
  if (op == "sigmoid") return unary(op, x) * (1 - unary(op, x));
  if (op == "tanh") return 1 - std::tanh(x) * std::tanh(x);
  if (op == "exp") return std::exp(x);
  if (op == "abs") return x > 0 ? 1 : -1;
  if (op == "square") return 2 * x;
  throw std::invalid_argument("no slope: " + op);
}
inline double binary(const std::string& op, double a, double b) {
  if (op == "add") return a + b;
  if (op == "sub") return a - b;
  if (op == "mul") return a * b;
  if (op == "div") return a / b;
  if (op == "maximum") return std::max(a, b);
  if (op == "minimum") return std::min(a, b);
  throw std::invalid_argument("not interpreted: " + op);
}
inline double partial_slope(const std::string& op, int of, double a, double b) {
  if (op == "div") return of == 0 ? 1 / b : -a / (b * b);
  if (op == "maximum") return (of == 0) == (a > b) ? 1 : 0;
  if (op == "minimum") return (of == 0) == (a < b) ? 1 : 0;
  throw std::invalid_argument("no slope: " + op);
}

/// Convolutions and poolings, and their gradients: every pixel that a window reads, by its definition.
inline void images(const tensor_node& n, const std::vector<const tensor*>& in, tensor& out) {
  const auto window = window_of(n);
  const bool to_image = n.op == "conv2d_input_grad" || n.op.ends_with("pool2d_grad");  // the result is the image
  const auto& image = to_image ? out : *in[0];
  const auto& pixels = to_image ? *in[0] : n.op == "conv2d_weight_grad" ? *in[1] : out;
  // Calls visit with the indices of a result's pixel, of the image's under the window, and of the window; outside it is none.
  const auto each_read = [&](const auto& visit) {
    each_index({pixels.shape[2], pixels.shape[3], window.height, window.width}, [&](const auto& i) {
      const auto y = i[0] * window.stride + i[2] - window.padding, x = i[1] * window.stride + i[3] - window.padding;
      if (y >= 0 && x >= 0 && y < image.shape[2] && x < image.shape[3]) visit(i[0], i[1], y, x, i[2], i[3]);
    });
  };
  if (n.op.starts_with("conv2d")) {
    const auto& weights = n.op == "conv2d_weight_grad" ? out : *in[1];
    each_index({image.shape[0], weights.shape[0], weights.shape[1]}, [&](const auto& i) {
      each_read([&](auto oy, auto ox, auto y, auto x, auto a, auto b) {
        const auto at_pixel = pixels.at({i[0], i[1], oy, ox}), at_image = image.at({i[0], i[2], y, x}),
                   at_weight = weights.at({i[1], i[2], a, b});
        if (n.op == "conv2d") out.data[at_pixel] += in[0]->data[at_image] * in[1]->data[at_weight];
        if (n.op == "conv2d_input_grad") out.data[at_image] += in[0]->data[at_pixel] * in[1]->data[at_weight];
        if (n.op == "conv2d_weight_grad") out.data[at_weight] += in[0]->data[at_image] * in[1]->data[at_pixel];
      });
    });
    return;
  }
  const double area = static_cast<double>(window.height * window.width);
  each_index({image.shape[0], image.shape[1]}, [&](const auto& i) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, std::size_t>> most;  // and where, by pixel
    each_read([&](auto oy, auto ox, auto y, auto x, auto, auto) {
      const auto at_pixel = pixels.at({i[0], i[1], oy, ox}), at_image = image.at({i[0], i[1], y, x});
      if (n.op == "avg_pool2d") out.data[at_pixel] += in[0]->data[at_image] / area;
      if (n.op == "avg_pool2d_grad") out.data[at_image] += in[0]->data[at_pixel] / area;
      if (!n.op.starts_with("max")) return;
      const double value = in.back()->data[at_image];
      const auto [known, fresh] = most.try_emplace({oy, ox}, value, at_image);
      if (!fresh && value > known->second.first) known->second = {value, at_image};
    });
    for (const auto& [pixel, largest] : most) {
      const auto at_pixel = pixels.at({i[0], i[1], pixel.first, pixel.second});
      if (to_image)
        out.data[largest.second] += in[0]->data[at_pixel];
      else
        out.data[at_pixel] = largest.first;
    }
  });
}

/// Where tokens go: one choice of all tokens after the other.
inline void route(const tensor_node& n, const tensor& gates, tensor& out) {
  for (std::int64_t g = 0; g < gates.shape[0]; ++g) {
    std::vector<std::int64_t> taken(static_cast<std::size_t>(gates.shape[2]));
    for (std::int64_t choice = 0; choice < n.settings[0]; ++choice)
      for (std::int64_t s = 0; s < gates.shape[1]; ++s) {
        // The expert of which exactly `choice` others have a larger gate, or as large a one and come first.
        for (std::int64_t e = 0; e < gates.shape[2]; ++e) {
          std::int64_t before = 0;
          for (std::int64_t f = 0; f < gates.shape[2]; ++f) {
            const double mine = gates.data[gates.at({g, s, e})], other = gates.data[gates.at({g, s, f})];
            before += other > mine || (other == mine && f < e);
          }
          if (before != choice || taken[static_cast<std::size_t>(e)] == n.settings[1]) continue;
          out.data[out.at({g, s, e})] = static_cast<double>(++taken[static_cast<std::size_t>(e)]);
        }
      }
  }
}

/// dispatch, combine and gate_grad: sums over all slots that tokens have.
inline void experts(const tensor_node& n, const std::vector<const tensor*>& in, tensor& out) {
  const bool to_slots = n.op == "dispatch", to_gates = n.op == "gate_grad";
  const tensor& routes = to_gates ? *in[2] : *in[1];
  const tensor& tokens = to_slots || to_gates ? *in[0] : out;
  const tensor& slots = to_slots ? out : to_gates ? *in[1] : *in[0];
  each_index({routes.shape[0], routes.shape[1], routes.shape[2], tokens.shape[2]}, [&](const auto& i) {
    const auto at_gate = routes.at({i[0], i[1], i[2]});
    const auto slot = static_cast<std::int64_t>(routes.data[at_gate]) - 1;
    if (slot < 0) return;
    const auto at_token = tokens.at({i[0], i[1], i[3]}), at_slot = slots.at({i[2], i[0], slot, i[3]});
    const double gate = !to_gates && in.size() > 2 ? in[2]->data[at_gate] : 1;
    if (to_slots) out.data[at_slot] += gate * in[0]->data[at_token];
    if (n.op == "combine") out.data[at_token] += gate * in[0]->data[at_slot];
    if (to_gates) out.data[at_gate] += in[0]->data[at_token] * in[1]->data[at_slot];
  });
}

/// What a node makes of (parts of) its inputs. `shape`: of the (part of the) result. `row`: the first row of an embedding's
/// table, or of its gradient, that the device has.
inline tensor compute(const tensor_node& n, const std::vector<const tensor*>& in, const std::vector<std::int64_t>& shape,
                      std::int64_t row) {
  tensor out(shape);
  const auto broadcast = [&](const tensor& t, const std::vector<std::int64_t>& index) {
    std::vector<std::int64_t> own(t.shape.size());
    for (std::size_t d = 0; d < own.size(); ++d) own[d] = t.shape[d] == 1 ? 0 : index[index.size() - own.size() + d];
    return t.data[t.at(own)];
  };
  const auto elementwise = [&](const auto& f) {
    each_index(shape, [&](const auto& index) { out.data[out.at(index)] = f(index); });
  };
  const auto ends = [&](const char* tail) { return n.op.size() > std::string(tail).size() && n.op.ends_with(tail); };
  if (n.op == "matmul") {
    std::vector<std::int64_t> loops(n.loops.size(), 1);
    for (std::size_t i = 0; i < in.size(); ++i)
      for (std::size_t d = 0; d < in[i]->shape.size(); ++d)
        loops[static_cast<std::size_t>(n.input_loops[i][d])] = in[i]->shape[d];
    each_index(loops, [&](const auto& index) {
      const auto pick = [&](const std::vector<int>& follows) {
        std::vector<std::int64_t> own;
        for (const int l : follows) own.push_back(index[static_cast<std::size_t>(l)]);
        return own;
      };
      out.data[out.at(pick(n.result_loops))] +=
          in[0]->data[in[0]->at(pick(n.input_loops[0]))] * in[1]->data[in[1]->at(pick(n.input_loops[1]))];
    });
  } else if (n.op.starts_with("conv2d") || n.op.find("pool2d") != std::string::npos) {
    images(n, in, out);
  } else if (n.op == "route") {
    route(n, *in[0], out);
  } else if (n.op == "dispatch" || n.op == "combine" || n.op == "gate_grad") {
    experts(n, in, out);
  } else if (n.op == "ones") {
    elementwise([](const auto&) { return 1.0; });
  } else if (n.op == "softmax" || n.op == "softmax_grad" || n.op.starts_with("layernorm")) {
    const auto width = shape.back();
    const auto& last = n.op == "softmax_grad" || n.op == "layernorm_grad" || n.op == "layernorm_weight_grad" ? *in[1] : *in[0];
    for (std::int64_t r = 0; r < elements_of(shape) / width; ++r) {
      const auto* x = last.data.data() + r * width;
      const auto* dy = in[0]->data.data() + r * width;
      auto* y = out.data.data() + r * width;
      if (n.op == "softmax") {
        double sum = 0;
        for (std::int64_t i = 0; i < width; ++i) sum += std::exp(x[i]);
        for (std::int64_t i = 0; i < width; ++i) y[i] = std::exp(x[i]) / sum;
      } else if (n.op == "softmax_grad") {
        double dot = 0;
        for (std::int64_t i = 0; i < width; ++i) dot += dy[i] * x[i];
        for (std::int64_t i = 0; i < width; ++i) y[i] = (dy[i] - dot) * x[i];
      } else {
        double mean = 0, square = 0;
        for (std::int64_t i = 0; i < width; ++i) mean += x[i] / static_cast<double>(width);
        for (std::int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(width);
        const double deviation = std::sqrt(square + 1e-5);
        const auto hat = [&](std::int64_t i) { return (x[i] - mean) / deviation; };
        if (n.op == "layernorm") {
          for (std::int64_t i = 0; i < width; ++i)
            y[i] = hat(i) * (in.size() > 1 ? in[1]->data[static_cast<std::size_t>(i)] : 1) +
                   (in.size() > 2 ? in[2]->data[static_cast<std::size_t>(i)] : 0);
        } else if (n.op == "layernorm_weight_grad") {
          for (std::int64_t i = 0; i < width; ++i) y[i] = dy[i] * hat(i);
        } else {
          const auto g = [&](std::int64_t i) { return dy[i] * (in.size() > 2 ? in[2]->data[static_cast<std::size_t>(i)] : 1); };
          double sum = 0, dot = 0;
          for (std::int64_t i = 0; i < width; ++i) {
            sum += g(i) / static_cast<double>(width);
            dot += g(i) * hat(i) / static_cast<double>(width);
          }
          for (std::int64_t i = 0; i < width; ++i) y[i] = (g(i) - sum - hat(i) * dot) / deviation;
        }
      }
    }
  } else if (n.op == "embedding") {
    elementwise([&](const auto& index) {
      const auto id = static_cast<std::int64_t>(in[0]->data[in[0]->at({index.begin(), index.end() - 1})]) - row;
      return id >= 0 && id < in[1]->shape[0] ? in[1]->data[in[1]->at({id, index.back()})] : 0.0;
    });
  } else if (n.op == "embedding_grad") {
    each_index(in[0]->shape, [&](const auto& index) {
      const auto id = static_cast<std::int64_t>(in[1]->data[in[1]->at({index.begin(), index.end() - 1})]) - row;
      if (id >= 0 && id < shape[0]) out.data[out.at({id, index.back()})] += in[0]->data[in[0]->at(index)];
    });
  } else if (n.op == "reshape" || n.op == "border") {
    out.data = in[0]->data;
  } else if (n.op == "transpose") {
    elementwise([&](const auto& index) {
      std::vector<std::int64_t> from(index.size());
      for (std::size_t d = 0; d < index.size(); ++d) from[static_cast<std::size_t>(n.result_loops[d])] = index[d];
      return in[0]->data[in[0]->at(from)];
    });
  } else if (n.op == "sum" || n.op == "sum_to") {
    each_index(in[0]->shape, [&](const auto& index) {
      std::vector<std::int64_t> own(shape.size());
      for (std::size_t d = 0; d < own.size(); ++d) own[d] = shape[d] == 1 ? 0 : index[index.size() - own.size() + d];
      out.data[out.at(own)] += in[0]->data[in[0]->at(index)];
    });
  } else if (n.op == "expand") {
    elementwise([&](const auto& index) { return broadcast(*in[0], index); });
  } else if (ends("_grad_0") || ends("_grad_1")) {
    const auto op = n.op.substr(0, n.op.size() - 7);
    elementwise([&](const auto& i) {
      return broadcast(*in[0], i) * partial_slope(op, n.op.back() - '0', broadcast(*in[1], i), broadcast(*in[2], i));
    });
  } else if (ends("_grad")) {
    const auto op = n.op.substr(0, n.op.size() - 5);
    elementwise([&](const auto& i) { return broadcast(*in[0], i) * slope(op, broadcast(*in[1], i)); });
  } else if (in.size() == 1) {
    elementwise([&](const auto& i) { return unary(n.op, broadcast(*in[0], i)); });
  } else {
    elementwise([&](const auto& i) { return binary(n.op, broadcast(*in[0], i), broadcast(*in[1], i)); });
  }
  return out;
}

/// All nodes on one device; leaves have the given values.
inline std::vector<tensor> run_whole(const tensor_graph& graph, const std::map<int, tensor>& leaves) {
  std::vector<tensor> values;
  for (int i = 0; i < graph.size(); ++i) {
    const auto& n = graph.at(i);
    std::vector<const tensor*> in;
    for (const int j : n.inputs) in.push_back(&values[static_cast<std::size_t>(j)]);
    values.push_back(is_leaf(n) ? leaves.at(i) : compute(n, in, n.shape, 0));
  }
  return values;
}

/// What each device has after a program: per node and form its tensor.
class devices {
 public:
  devices(const spmd::problem& problem, const std::vector<double>& shares)
      : problem_(problem), shares_(shares), parts_(spmd::cut_parts(problem.graph)) {
    has_.resize(static_cast<std::size_t>(problem.device_count()));
  }

  void run(const spmd::program& program, const std::map<int, tensor>& leaves) {
    for (const auto& step : program) {
      const auto& n = problem_.graph.at(step.node);
      if (step.collective) {
        const auto all = whole(step.node, step.from);
        for (std::size_t d = 0; d < has_.size(); ++d) put(d, step.node, step.to, part_of(all, step.node, step.to, d));
      } else if (is_leaf(n)) {
        for (std::size_t d = 0; d < has_.size(); ++d)
          put(d, step.node, step.rule.result, part_of(leaves.at(step.node), step.node, step.rule.result, d));
      } else if (is_border(n)) {
        const auto result = step.rule.result;
        const auto all = result.is_cut() ? whole(n.inputs[0], step.rule.inputs[0]) : tensor();
        for (std::size_t d = 0; d < has_.size(); ++d)
          put(d, step.node, result, result.is_cut() ? part_of(all, step.node, result, d) : get(d, n.inputs[0], result));
      } else {
        for (std::size_t d = 0; d < has_.size(); ++d) {
          std::vector<tensor> in;
          for (std::size_t i = 0; i < n.inputs.size(); ++i) in.push_back(get(d, n.inputs[i], step.rule.inputs[i]));
          std::vector<const tensor*> refs;
          for (const auto& t : in) refs.push_back(&t);
          auto shape = n.shape;
          if (step.rule.result.is_cut())
            shape[static_cast<std::size_t>(step.rule.result.dimension())] =
                range(step.node, step.rule.result.dimension(), d).second;
          std::int64_t row = 0;
          if (n.op == "embedding" && step.rule.inputs[1] == spmd::tensor_form::cut(0)) row = range(n.inputs[1], 0, d).first;
          if (n.op == "embedding_grad" && step.rule.result == spmd::tensor_form::cut(0)) row = range(step.node, 0, d).first;
          put(d, step.node, step.rule.result, compute(n, refs, shape, row));
        }
      }
    }
  }

  /// What the devices have of a node together, from what they have in that form; throws if they lack it.
  [[nodiscard]] tensor whole(int node, spmd::tensor_form form) const {
    tensor all(problem_.graph.at(node).shape);
    for (std::size_t d = 0; d < has_.size(); ++d) {
      const auto mine = get(d, node, form);
      if (form.is_whole()) return mine;
      if (form.is_partial()) {
        for (std::size_t i = 0; i < all.data.size(); ++i) all.data[i] += mine.data[i];
        continue;
      }
      const auto dimension = static_cast<std::size_t>(form.dimension());
      const auto first = range(node, form.dimension(), d).first;
      each_index(mine.shape, [&](std::vector<std::int64_t> index) {
        const auto from = mine.at(index);
        index[dimension] += first;
        all.data[all.at(index)] = mine.data[from];
      });
    }
    return all;
  }
  [[nodiscard]] bool has(int node, spmd::tensor_form form) const { return has_.front().count({node, form}) != 0; }

 private:
  // First index and size of a device's part.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> range(int node, int dimension, std::size_t device) const {
    const auto parts = parts_[static_cast<std::size_t>(node)][static_cast<std::size_t>(dimension)];
    const auto own = shares_.begin() + static_cast<std::ptrdiff_t>(problem_.first_share(node));
    const auto whole = spmd::whole_parts(parts, problem_.kinds, {own, own + static_cast<std::ptrdiff_t>(problem_.kinds.size())});
    const auto size = problem_.graph.at(node).shape[static_cast<std::size_t>(dimension)] / parts;
    std::int64_t first = 0;
    for (std::size_t d = 0; d < device; ++d) first += whole[d];
    return {first * size, whole[device] * size};
  }
  [[nodiscard]] tensor part_of(const tensor& all, int node, spmd::tensor_form form, std::size_t device) const {
    if (!form.is_cut()) return all;
    const auto [first, size] = range(node, form.dimension(), device);
    auto shape = all.shape;
    shape[static_cast<std::size_t>(form.dimension())] = size;
    tensor part(shape);
    each_index(shape, [&, first = first](std::vector<std::int64_t> index) {
      const auto to = part.at(index);
      index[static_cast<std::size_t>(form.dimension())] += first;
      part.data[to] = all.data[all.at(index)];
    });
    return part;
  }
  void put(std::size_t device, int node, spmd::tensor_form form, tensor value) {
    has_[device].insert_or_assign({node, form}, std::move(value));
  }
  [[nodiscard]] tensor get(std::size_t device, int node, spmd::tensor_form form) const {
    const auto& mine = has_[device];
    if (const auto found = mine.find({node, form}); found != mine.end()) return found->second;
    const auto all = form.is_cut() ? mine.find({node, spmd::tensor_form::whole()}) : mine.end();
    if (all == mine.end())
      throw std::logic_error("a device lacks node " + problem_.graph.at(node).name + " as " + spmd::text_of(form));
    return part_of(all->second, node, form, device);
  }

  const spmd::problem& problem_;
  std::vector<double> shares_;
  std::vector<std::vector<std::int64_t>> parts_;
  std::vector<std::map<std::pair<int, spmd::tensor_form>, tensor>> has_;
};

}  // namespace spmd_test
