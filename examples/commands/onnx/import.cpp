// SPDX-License-Identifier: Apache-2.0
#include "import.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <istream>
#include <map>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/graph.hpp>
#include <hetsched/model/operator.hpp>

#include "operator_names.hpp"
#include "values.hpp"

namespace onnx_import {

namespace {

using hetsched::checked_add;
using hetsched::checked_mul;
using hetsched::graph_node;
using hetsched::input_error;
using hetsched::operator_shape;

// Where a value comes from; a model's input, which is at hand everywhere, has neither node nor parameter.
struct source {
  int node = -1;
  int parameter = -1;     // or a view of one
  bool constant = false;  // the same for all samples, and not trained; with `parameter`: unless it is a weight or a bias
  // Constants of quantised or computed numbers are parameters, too, where a product reads them.
};

[[nodiscard]] std::int64_t product(const sizes& shape, std::size_t first, std::size_t last) {
  std::int64_t count = 1;
  for (auto i = first; i < last; ++i) count = checked_mul(count, shape[i]);
  return count;
}
[[nodiscard]] std::int64_t elements(const sizes& shape) { return product(shape, 0, shape.size()); }

[[nodiscard]] int bytes_of_element(int element) {
  switch (element) {
    case onnx::TensorProto::INT64:
    case onnx::TensorProto::UINT64:
      return 8;
    case onnx::TensorProto::INT32:
    case onnx::TensorProto::UINT32:
      return 4;
    case onnx::TensorProto::INT16:
    case onnx::TensorProto::UINT16:
      return 2;
    default:
      return 1;
  }
}

// Whether numbers of a type may be weights in few bits: int8, and what later versions of the standard have (float8, int4).
[[nodiscard]] bool is_quantised(int element) {
  return element == onnx::TensorProto::INT8 || element == onnx::TensorProto::UINT8 || element > onnx::TensorProto::BFLOAT16;
}

// Sizes of a product of two operands.
struct product_sizes {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
};

class builder {
 public:
  builder(onnx::ModelProto& model, const options& given)
      : model_(model), format_(given.format), values_(model, given.samples, result_.warnings) {
    graph_.parameter_bytes = hetsched::element_bytes(format_);
    for (const auto& f : model.functions()) functions_.insert(f.domain() + ":" + f.name());
    for (const auto& tensor : model.graph().initializer()) add_tensor(tensor.name(), sizes_of(tensor), tensor.data_type());
    for (const auto& input : model.graph().input()) sources_.try_emplace(input.name());
  }

  [[nodiscard]] imported run() && {
    for (auto& node : *model_.mutable_graph()->mutable_node()) add(node);
    for (const auto& [type, count] : unknown_)
      result_.warnings.push_back("operator " + type + " is not known: counted as elementwise on its results (" +
                                 std::to_string(count) + (count == 1 ? " node)" : " nodes)"));
    tell_idle_numbers();
    validate(graph_);
    return std::move(result_);
  }

 private:
  using handler = void (builder::*)();
  struct weight {
    std::int64_t count = 0;
    int owner = -1;
  };
  struct costs {
    operator_shape op{};
    std::vector<std::string> keeps{};
    bool keeps_result = false;
    hetsched::bytes_t saved_bytes = 0;
    int trained = 1 << 20;  // inputs, from the first on, that may be parameters
    bool weights = false;   // a single number is a parameter, too
    int weight = -1;        // the only input that may be a parameter, if not all
  };

  // A tensor that the file holds: trained where it has floating-point numbers. A single one is most often a mere factor.
  void add_tensor(const std::string& name, const sizes& shape, int element) {
    const auto count = elements(shape);
    auto& where = sources_[name];
    where.constant = !is_float(element) || count <= 1;
    if (is_float(element) || (is_quantised(element) && count > 1)) where.parameter = add_weight(count);
  }

  // A model without parameters plans into no memory.
  void tell_idle_numbers() {
    std::int64_t held = 0, read = 0;
    for (const auto& tensor : model_.graph().initializer())
      if (const auto& where = from(tensor.name()); where.parameter >= 0 && elements(sizes_of(tensor)) > 1) {
        held = checked_add(held, elements(sizes_of(tensor)));
        if (weights_[static_cast<std::size_t>(where.parameter)].owner >= 0) read = checked_add(read, elements(sizes_of(tensor)));
      }
    if (held - read > held / 10)  // scales are none, either
      result_.warnings.push_back("of " + std::to_string(held) + " numbers that the file holds, " + std::to_string(held - read) +
                                 " are parameters of no operator");
  }

  int add_weight(std::int64_t count) {
    weights_.push_back({count, -1});
    return static_cast<int>(weights_.size()) - 1;
  }

  // What a node makes of constants alone is a constant: the one that it is made of, where that has as many numbers.
  void add_constant(const std::string& name) {
    auto& made = sources_[name];
    made = {.constant = true};
    const int element = values_.element(name);
    const auto count = elements(shape(name));
    if ((!is_float(element) && !is_quantised(element)) || count <= 1) return;
    for (const auto& input : node_->input()) {
      if (input.empty() || from(input).parameter < 0) continue;
      if (weights_[static_cast<std::size_t>(from(input).parameter)].count != count) continue;
      made = from(input);
      return;
    }
    made.parameter = add_weight(count);
  }

  void add(onnx::NodeProto& node) {
    node_ = &node;
    const auto& type = node.op_type();
    const bool has_graph = std::any_of(node.attribute().begin(), node.attribute().end(),
                                       [](const auto& a) { return a.has_g() || a.graphs_size() > 0; });
    if (has_graph || is_control_flow(type))
      throw input_error(called(node) + ": control flow cannot be imported; export the model with the branches that it takes");
    if (functions_.contains(node.domain() + ":" + type))
      throw input_error(called(node) + ": calls a function of the model's own; inline functions before importing");
    values_.infer(node);
    if (std::all_of(node.output().begin(), node.output().end(), [](const auto& name) { return name.empty(); })) return;
    if ((type == "QuantizeLinear" || type == "DequantizeLinear") && is_weight(0)) {  // scales are part of how it is stored
      sources_[result()] = {.parameter = from(in(0)).parameter, .constant = type == "QuantizeLinear" && from(in(0)).constant};
      return;
    }
    const bool fixed = is_shape_only(type) || std::all_of(node.input().begin(), node.input().end(), [&](const auto& name) {
                         return name.empty() || sources_.at(name).constant;
                       });
    if (fixed) {
      if (type == "Constant")
        add_tensor(result(), shape(result()), values_.element(result()));
      else
        for (const auto& name : node.output())
          if (!name.empty()) is_shape_only(type) ? void(sources_[name] = {.constant = true}) : add_constant(name);
      return;
    }
    try {
      if (is_view())
        add_views();
      else
        add_operator();
    } catch (const input_error& wrong) {
      const std::string text = wrong.what();
      throw input_error(text.starts_with("node ") ? text : called(node) + ": " + text);
    }
  }

  void add_operator() {
    static const std::map<std::string_view, handler> handlers{{"MatMul", &builder::matmul},
                                                              {"Gemm", &builder::gemm},
                                                              {"MatMulInteger", &builder::matmul},
                                                              {"QLinearMatMul", &builder::quantised_matmul},
                                                              {"ConvInteger", &builder::convolution},
                                                              {"QLinearConv", &builder::quantised_convolution},
                                                              {"Conv", &builder::convolution},
                                                              {"ConvTranspose", &builder::transposed_convolution},
                                                              {"Einsum", &builder::einsum},
                                                              {"LSTM", &builder::recurrent},
                                                              {"GRU", &builder::recurrent},
                                                              {"RNN", &builder::recurrent},
                                                              {"Softmax", &builder::softmax},
                                                              {"LogSoftmax", &builder::softmax},
                                                              {"Hardmax", &builder::softmax},
                                                              {"SoftmaxCrossEntropyLoss", &builder::loss},
                                                              {"LayerNormalization", &builder::row_norm},
                                                              {"RMSNormalization", &builder::row_norm},
                                                              {"SimplifiedLayerNormalization", &builder::row_norm},
                                                              {"InstanceNormalization", &builder::channel_norm},
                                                              {"GroupNormalization", &builder::channel_norm},
                                                              {"BatchNormalization", &builder::channel_norm},
                                                              {"Gather", &builder::gather}};
    const std::string_view type = node_->op_type();
    const bool standard = node_->domain().empty() || node_->domain() == "ai.onnx";
    const auto known = handlers.find(type);
    const auto plain = elementwise_kind(node_->op_type());
    if (standard && known != handlers.end())
      (this->*known->second)();
    else if (standard && plain)
      elementwise(*plain);
    else if (type == "MatMulNBits")
      packed_matmul();
    else
      unknown();
  }

  // --- what stands for what

  [[nodiscard]] const sizes& shape(const std::string& name) const { return values_.shape(name, *node_); }
  [[nodiscard]] const std::string& in(int i) const { return node_->input(i); }
  // The first result that has a name: there is one.
  [[nodiscard]] const std::string& result() const {
    return *std::find_if(node_->output().begin(), node_->output().end(), [](const auto& name) { return !name.empty(); });
  }
  [[nodiscard]] bool given(int i) const { return i < node_->input_size() && !in(i).empty(); }
  [[nodiscard]] const source& from(const std::string& name) const { return sources_.at(name); }
  [[nodiscard]] bool is_weight(int i) const { return from(in(i)).parameter >= 0; }

  [[nodiscard]] bool trainable(const std::string& name) const {
    const auto& where = from(name);
    return (where.parameter >= 0 && !where.constant) || (where.node >= 0 && needs_[static_cast<std::size_t>(where.node)] != 0);
  }

  // Fails for a node with too few inputs, which the standard's own check has not seen.
  void require_inputs(int count) const {
    for (int i = 0; i < count; ++i)
      if (!given(i)) throw input_error("input " + std::to_string(i) + " is missing");
  }

  [[nodiscard]] hetsched::bytes_t bytes(const std::string& name) const {
    const int element = values_.element(name);
    return checked_mul(elements(shape(name)), is_float(element) ? hetsched::element_bytes(format_) : bytes_of_element(element));
  }

  [[nodiscard]] double traffic(int results = 1) const {
    double sum = 0;
    for (const auto& name : std::set<std::string>(node_->input().begin(), node_->input().end()))
      if (!name.empty() && elements(shape(name)) > 1) sum += static_cast<double>(bytes(name));
    if (results == 1) return sum + static_cast<double>(bytes(result()));
    for (int i = 0; i < node_->output_size(); ++i)
      if (!node_->output(i).empty()) sum += static_cast<double>(bytes(node_->output(i)));
    return sum;
  }

  [[nodiscard]] operator_shape moving(int results = 1) const {
    auto op = hetsched::elementwise(std::max<std::int64_t>(1, elements(shape(result()))), 0, 1, format_);
    op.traffic_bytes = traffic(results);
    return op;
  }

  [[nodiscard]] std::size_t axis_of(const sizes& of, std::int64_t axis) const {
    const auto rank = static_cast<std::int64_t>(of.size());
    if (axis < -rank || axis >= rank) throw input_error("no axis " + std::to_string(axis));
    return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  }

  // --- recording

  static void insert(std::vector<int>& set, int x) {
    if (std::find(set.begin(), set.end(), x) == set.end()) set.push_back(x);
  }

  [[nodiscard]] graph_node make_node(const std::string& output) const {
    std::string name = node_->name().empty() ? output : node_->name();
    name.erase(0, name.find_first_not_of('/'));
    name.resize(std::min<std::size_t>(name.size(), 200));  // with room for a number behind a layer's name
    for (char& c : name)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f)
        c = '_';  // a file of ours takes no control characters, and no broken UTF-8
    if (name.empty()) name = "operator";
    return {.name = std::move(name), .type = node_->op_type(), .output_bytes = bytes(output)};
  }

  void append(graph_node node) {
    bool needs = node.parameters > 0 || node.shared_parameters > 0;
    for (const int i : node.inputs) needs = needs || needs_[static_cast<std::size_t>(i)] != 0;
    needs_.push_back(needs);
    graph_.nodes.push_back(std::move(node));
  }

  void read_parameter(graph_node& node, int index, int id) {
    auto& w = weights_[static_cast<std::size_t>(id)];
    if (w.owner == index) return;
    if (w.owner < 0) {
      w.owner = index;
      node.parameters = checked_add(node.parameters, w.count);
    } else {
      node.shared_parameters = checked_add(node.shared_parameters, w.count);
      insert(node.owners, w.owner);
    }
  }

  void record(const costs& what, int results = 1) {
    const int index = graph_.size();
    auto node = make_node(result());
    for (int i = 1; i < std::min(results, node_->output_size()); ++i)
      if (!node_->output(i).empty()) node.output_bytes = checked_add(node.output_bytes, bytes(node_->output(i)));
    node.op = what.op;
    bool needs = false;
    for (int i = 0; i < node_->input_size(); ++i) {
      if (!given(i)) continue;
      const auto& where = from(in(i));
      const bool trained =
          where.parameter >= 0 && i < what.trained && (what.weight < 0 || what.weight == i) && (what.weights || !where.constant);
      if (where.node >= 0)
        node.inputs.push_back(where.node);
      else if (trained)
        read_parameter(node, index, where.parameter);
      needs = needs || trained || (where.node >= 0 && needs_[static_cast<std::size_t>(where.node)] != 0);
    }
    if (needs) {
      node.saved_bytes = what.saved_bytes;
      for (const auto& name : what.keeps) {
        const auto& where = from(name);
        if (where.node >= 0)
          insert(node.kept, hetsched::storage_of(graph_, where.node));
        else if (where.parameter < 0 && !where.constant)
          node.saved_bytes = checked_add(node.saved_bytes, bytes(name));
      }
      if (what.keeps_result) insert(node.kept, index);
    }
    append(std::move(node));
    for (const auto& name : node_->output()) sources_[name] = {.node = index};
  }

  // --- operators

  [[nodiscard]] bool is_view() const {
    const std::string_view type = node_->op_type();
    if (type == "Cast") return is_float(values_.element(in(0))) && is_float(values_.element(result()));
    if (type == "Gather" && !is_weight(0)) {
      const auto* index = values_.known(in(1));
      return index != nullptr && index->data.size() == 1;
    }
    return is_view_type(node_->op_type());
  }

  // Of weights they are the weights, and of the model's inputs its inputs.
  void add_views() {
    const auto where = from(in(0));
    for (const auto& name : node_->output()) {
      sources_[name] = where;
      if (where.node < 0 || name.empty()) continue;
      sources_[name] = {.node = graph_.size()};
      auto node = make_node(name);
      node.launches = false;
      node.inputs = {where.node};
      append(std::move(node));
    }
  }

  [[nodiscard]] operator_shape product_of(const product_sizes& s) const {
    return s.batch == 1 ? hetsched::gemm(s.m, s.n, s.k, format_) : hetsched::batched_gemm(s.batch, s.m, s.n, s.k, format_);
  }

  // Operands a and b. Weights are the right operand: where they stand left, the transposed product is the same.
  void multiply(product_sizes s, int a, int b, int only = -1) {
    const bool right = is_weight(b), left = !right && is_weight(a);
    if (left) std::swap(s.m, s.n);
    if (right || left) {
      const auto own = elements(shape(in(right ? b : a))) / checked_mul(s.n, s.k);  // matrices of weights; samples share them
      if (own >= 1 && s.batch % own == 0) s = {own, checked_mul(s.m, s.batch / own), s.n, s.k};
    }
    costs what{.op = right || left ? product_of(s) : hetsched::batched_gemm(s.batch, s.m, s.n, s.k, format_)};
    what.op.traffic_bytes = traffic();
    what.weights = true;
    what.weight = only;
    if (is_weight(b) || trainable(in(b))) what.keeps.push_back(in(a));
    if (is_weight(a) || trainable(in(a))) what.keeps.push_back(in(b));
    record(what);
  }

  void matmul() { matmul(0, 1); }
  void quantised_matmul() { matmul(0, 3); }

  // Weights lie in the second operand, several in a number.
  void packed_matmul() {
    require_inputs(2);
    const auto n = integer(*node_, "N", 1), k = integer(*node_, "K", 1);
    if (is_weight(1)) weights_[static_cast<std::size_t>(from(in(1)).parameter)].count = checked_mul(n, k);
    costs what{.op = product_of({1, elements(shape(result())) / n, n, k}), .keeps = {in(0)}, .trained = 2, .weights = true};
    what.op.traffic_bytes = traffic();
    record(what);
  }

  void matmul(int left, int right) {
    require_inputs(right + 1);
    auto a = shape(in(left)), b = shape(in(right));
    if (a.empty() || b.empty()) throw input_error("a number is no matrix");
    if (a.size() == 1) a.insert(a.begin(), 1);
    if (b.size() == 1) b.push_back(1);
    product_sizes s{.m = a[a.size() - 2], .n = b.back(), .k = a.back()};
    s.batch = elements(shape(result())) / std::max<std::int64_t>(1, checked_mul(s.m, s.n));
    multiply(s, left, right, right > 1 ? right : -1);  // scales lie between quantised ones
  }

  void gemm() {
    require_inputs(2);
    const auto &a = shape(in(0)), &y = shape(result());
    if (a.size() != 2 || y.size() != 2) throw input_error("operands must be matrices");
    multiply({.m = y[0], .n = y[1], .k = a[integer(*node_, "transA", 0) != 0 ? 0 : 1]}, 0, 1);
  }

  void convolve(std::int64_t pixels, std::int64_t channels, std::int64_t inner, std::int64_t groups, int filters = 1) {
    costs what{.op = product_of({groups, pixels, channels, inner})};
    what.op.traffic_bytes = traffic();
    what.weights = true;
    what.weight = filters > 1 ? filters : -1;
    if (is_weight(filters)) what.keeps.push_back(in(0));
    if (trainable(in(0))) what.keeps.push_back(in(filters));
    record(what);
  }

  // As an implicit product.
  void convolution() { convolution(1); }
  void quantised_convolution() { convolution(3); }
  void convolution(int filters) {
    require_inputs(filters + 1);
    const auto &w = shape(in(filters)), &y = shape(result());
    const auto groups = std::max<std::int64_t>(1, integer(*node_, "group", 1));
    if (y.size() < 3 || w.size() != y.size() || w[0] < 1) throw input_error("operands must be images and filters");
    convolve(checked_mul(y[0], product(y, 2, y.size())), w[0] / groups, elements(w) / w[0], groups, filters);
  }

  void transposed_convolution() {
    require_inputs(2);
    const auto &x = shape(in(0)), &w = shape(in(1));
    const auto groups = std::max<std::int64_t>(1, integer(*node_, "group", 1));
    if (x.size() < 3 || w.size() != x.size() || w[0] < 1) throw input_error("operands must be images and filters");
    convolve(checked_mul(x[0], product(x, 2, x.size())), elements(w) / w[0], w[0] / groups, groups);
  }

  // Of two operands: a label of both is summed over, or of the batch if the result has it, too.
  void einsum() {
    const auto labels = labels_of(*node_);
    if (!labels || node_->input_size() != 2) return unknown();
    const auto has = [](const std::string& list, char label) { return list.find(label) != std::string::npos; };
    product_sizes s;
    for (std::size_t operand : {0u, 1u}) {
      const auto& mine = labels->operands[operand];
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const bool shared = has(labels->operands[1 - operand], mine[i]), kept = has(labels->result, mine[i]);
        if (shared && operand == 1) continue;
        auto& into = shared ? (kept ? s.batch : s.k) : operand == 0 ? s.m : s.n;
        into = checked_mul(into, shape(in(static_cast<int>(operand)))[i]);
      }
    }
    multiply(s, 0, 1);
  }

  // Steps one behind the other, counted as one product over all of them.
  void recurrent() {
    require_inputs(3);
    const auto &x = shape(in(0)), &w = shape(in(1)), &r = shape(in(2));
    if (x.size() != 3 || w.size() != 3 || r.size() != 3) throw input_error("operands must have three axes");
    const auto steps = checked_mul(x[0], x[1]);
    costs what{.op = product_of({w[0], steps, w[1], checked_add(w[2], r[2])}), .keeps = {in(0)}, .keeps_result = true};
    what.op.traffic_bytes = traffic();
    what.weights = true;
    what.saved_bytes = checked_mul(steps, w[0], w[1], hetsched::element_bytes(format_));  // gates
    record(what);
  }

  void softmax() {
    const auto& x = shape(in(0));
    const bool flat = values_.version(*node_) < 13;  // all axes from `axis` on
    const auto axis = axis_of(x, integer(*node_, "axis", flat ? 1 : -1));
    const auto columns = flat ? product(x, axis, x.size()) : x[axis];
    record({.op = hetsched::softmax(elements(x) / std::max<std::int64_t>(1, columns), columns, format_), .keeps_result = true});
  }

  void loss() {
    const auto& x = shape(in(0));
    if (x.size() < 2 || x[1] < 1) throw input_error("logits need two axes");
    record({.op = hetsched::softmax(elements(x) / x[1], x[1], format_), .saved_bytes = checked_mul(4, elements(x))});
  }

  void row_norm() {
    const auto& x = shape(in(0));
    const auto rows = product(x, 0, axis_of(x, integer(*node_, "axis", -1)));
    record(
        {.op = hetsched::norm(rows, elements(x) / std::max<std::int64_t>(1, rows), format_), .keeps = {in(0)}, .weights = true});
  }

  // A batch norm's running statistics are not trained.
  void channel_norm() {
    const auto& x = shape(in(0));
    if (x.size() < 2) throw input_error("images need an axis of channels");
    const auto& type = node_->op_type();
    const auto rows = type == "BatchNormalization"   ? x[1]
                      : type == "GroupNormalization" ? checked_mul(x[0], integer(*node_, "num_groups", 1))
                                                     : checked_mul(x[0], x[1]);
    record({.op = hetsched::norm(rows, elements(x) / std::max<std::int64_t>(1, rows), format_),
            .keeps = {in(0)},
            .trained = 3,
            .weights = true});
  }

  void gather() {
    require_inputs(2);
    costs what{.op = moving(), .keeps = {in(1)}};
    if (is_weight(0)) {
      const auto tokens = elements(shape(in(1)));
      what.op = hetsched::embedding(tokens, elements(shape(result())) / std::max<std::int64_t>(1, tokens), format_);
    }
    record(what);
  }

  void elementwise(keeping kept) {
    costs what{.op = moving()};
    if (is_configured(node_->op_type())) what.trained = node_->op_type() == "Where" ? 0 : 1;
    if (kept == keeping::input && trainable(in(0))) what.keeps.push_back(in(0));
    if (kept == keeping::result) what.keeps_result = true;
    if (kept == keeping::mask) what.saved_bytes = elements(shape(result()));
    for (int i = 0; i < node_->input_size(); ++i) {
      if (!given(i)) continue;
      if (kept == keeping::indices && !is_float(values_.element(in(i)))) what.keeps.push_back(in(i));
      if (kept != keeping::operands) continue;
      bool wanted = node_->op_type() == "Div" && i == 1 && trainable(in(i));
      for (int j = 0; j < node_->input_size(); ++j) wanted = wanted || (j != i && given(j) && trainable(in(j)));
      if (wanted) what.keeps.push_back(in(i));
    }
    record(what);
  }

  void unknown() {
    ++unknown_[node_->domain().empty() ? node_->op_type() : node_->domain() + "." + node_->op_type()];
    const int all = node_->output_size();
    costs what{.op = moving(all)};
    for (int i = 0; i < node_->input_size(); ++i)
      if (given(i)) what.keeps.push_back(in(i));
    record(what, all);
  }

  onnx::ModelProto& model_;
  hetsched::number_format format_;
  imported result_;
  hetsched::operator_graph& graph_ = result_.graph;
  values values_;
  const onnx::NodeProto* node_ = nullptr;
  std::vector<weight> weights_;
  std::vector<char> needs_;  // whether a gradient flows into each node's result
  std::unordered_map<std::string, source> sources_;
  std::set<std::string> functions_;
  std::map<std::string, int> unknown_;
};

}  // namespace

imported import_model(std::istream& file, const options& options) {
  onnx::ModelProto model;
  if (!model.ParseFromIstream(&file) || !model.has_graph() || model.graph().node_size() == 0)
    throw input_error("not an ONNX model, or cut off (a model above 2 GB needs its weights in files beside it)");
  try {
    return builder(model, options).run();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const hetsched::error&) {
    throw;
  } catch (const std::exception& wrong) {  // of libonnx
    throw input_error(wrong.what());
  }
}

}  // namespace onnx_import
