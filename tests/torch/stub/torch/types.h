// SPDX-License-Identifier: Apache-2.0
#pragma once
// What component torch uses of LibTorch, declared and no more, so that the headers compile where there is none. What is
// here LibTorch has, too: the lane torch compiles ../headers.cpp against it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {

enum class ScalarType : std::int8_t { Byte, Char, Long, Half, Float, Double, BFloat16 };
enum class Layout : std::int8_t { Strided, Sparse };
std::ostream& operator<<(std::ostream&, ScalarType);
inline constexpr Layout kStrided = Layout::Strided;

struct BFloat16 {
  BFloat16() = default;
  BFloat16(float);
  operator float() const;
};

template <class T>
struct CppTypeToScalarType;
template <>
struct CppTypeToScalarType<float> {
  static constexpr ScalarType value = ScalarType::Float;
};
template <>
struct CppTypeToScalarType<double> {
  static constexpr ScalarType value = ScalarType::Double;
};
template <>
struct CppTypeToScalarType<std::int64_t> {
  static constexpr ScalarType value = ScalarType::Long;
};
template <>
struct CppTypeToScalarType<BFloat16> {
  static constexpr ScalarType value = ScalarType::BFloat16;
};

enum class DeviceType : std::int8_t { CPU, CUDA };
inline constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
using DeviceIndex = std::int8_t;
struct Device {
  Device(DeviceType, DeviceIndex = -1);
  bool operator==(const Device&) const noexcept;
};
std::ostream& operator<<(std::ostream&, const Device&);

struct Storage {
  std::size_t use_count() const;
  const void* data() const;
  std::size_t nbytes() const;
};

template <class T>
struct intrusive_ptr {
  explicit operator bool() const noexcept;
  T* operator->() const noexcept;
  void reset() noexcept;
};

struct Scalar {
  Scalar();
  Scalar(double);
};

class TensorImpl;

template <class T>
struct ArrayRef {
  ArrayRef();
  ArrayRef(const std::vector<T>&);
  ArrayRef(std::initializer_list<T>);
  const T* begin() const;
  const T* end() const;
  std::size_t size() const;
  const T& operator[](std::size_t) const;
};
template <class T>
std::ostream& operator<<(std::ostream&, ArrayRef<T>);

}  // namespace c10

namespace at {

using c10::BFloat16;
using c10::kCPU;
using c10::kStrided;
using c10::ScalarType;
inline constexpr ScalarType kByte = ScalarType::Byte, kDouble = ScalarType::Double;
using IntArrayRef = c10::ArrayRef<std::int64_t>;

class Tensor {
 public:
  bool defined() const;
  ScalarType scalar_type() const;
  c10::Device device() const;
  c10::Layout layout() const;
  IntArrayRef sizes() const;
  bool is_contiguous() const;
  bool is_same(const Tensor&) const noexcept;
  bool requires_grad() const;
  const Tensor& requires_grad_(bool = true) const;
  std::size_t use_count() const noexcept;
  const c10::Storage& storage() const;
  void reset();
  std::int64_t numel() const;
  std::size_t nbytes() const;
  Tensor to(ScalarType) const;
  Tensor to(const struct TensorOptions&) const;
  Tensor reshape(IntArrayRef) const;
  Tensor contiguous() const;
  Tensor flatten() const;
  Tensor narrow(std::int64_t, std::int64_t, std::int64_t) const;
  Tensor cpu() const;
  Tensor clone() const;
  Tensor detach() const;
  Tensor& add_(const Tensor&) const;
  Tensor& mul_(const c10::Scalar&) const;
  Tensor& copy_(const Tensor&, bool = false) const;
  Tensor& mutable_grad() const;
  c10::TensorImpl* unsafeGetTensorImpl() const;
  void* mutable_data_ptr() const;
  const void* const_data_ptr() const;
  template <class T>
  T* mutable_data_ptr() const;
  template <class T>
  const T* const_data_ptr() const;
  template <class T>
  T item() const;
};

Tensor zeros_like(const Tensor&);
Tensor scalar_tensor(const c10::Scalar&);

struct TensorOptions {
  TensorOptions(ScalarType);
  TensorOptions dtype(ScalarType) const;
};
TensorOptions device(c10::Device);
Tensor empty(IntArrayRef, const TensorOptions&);
Tensor from_blob(void*, IntArrayRef, const TensorOptions&);

struct Generator {
  std::mutex& mutex();
  void set_current_seed(std::uint64_t);
  void set_state(const Tensor&);
  Tensor get_state() const;
};
struct Context {
  const Generator& defaultGenerator(c10::Device);
};
Context& globalContext();

}  // namespace at

namespace c10 {

struct TypePtr {};
struct StringType {
  static TypePtr get();
};
struct AnyType {
  static TypePtr get();
};

struct IValue;
template <class Key, class Value>
struct Dict {
  Dict(TypePtr, TypePtr);
  void insert(const Key&, const Value&) const;
  bool contains(const Key&) const;
  Value at(const Key&) const;
  std::size_t size() const;
};
namespace impl {
using GenericDict = Dict<IValue, IValue>;
}

struct IValue {
  IValue(const char*);
  IValue(std::string);
  IValue(at::Tensor);
  IValue(std::int64_t);
  IValue(impl::GenericDict);
  bool isGenericDict() const;
  impl::GenericDict toGenericDict() const;
  bool isTensor() const;
  at::Tensor toTensor() const;
  bool isInt() const;
  std::int64_t toInt() const;
  Scalar toScalar() const;
};

}  // namespace c10

namespace caffe2::serialize {

struct PyTorchStreamWriter {
  explicit PyTorchStreamWriter(const std::string&);
  void writeRecord(const std::string&, const void*, std::size_t);
  void writeEndOfFile();
};

}  // namespace caffe2::serialize

namespace c10d {

struct Work {
  bool isCompleted();
  bool wait(std::chrono::milliseconds = {});
  void abort();
};
struct Backend {
  int getRank() const;
  int getSize() const;
  const std::string getBackendName() const;
  c10::intrusive_ptr<Work> send(std::vector<at::Tensor>&, int, int);
  c10::intrusive_ptr<Work> recv(std::vector<at::Tensor>&, int, int);
  void abort();
};
struct ProcessGroup {
  c10::intrusive_ptr<Backend> getBackend(c10::DeviceType) const;
};

}  // namespace c10d

namespace torch {

using namespace at;

struct AutoGradMode {
  explicit AutoGradMode(bool);
};
struct NoGradGuard {
  NoGradGuard();
};
void manual_seed(std::uint64_t);

namespace jit {

c10::IValue pickle_load(const std::vector<char>&);

struct Pickler {
  Pickler(std::function<void(const char*, std::size_t)>, std::vector<Tensor>*, std::function<void()>, std::vector<int>*,
          std::function<std::string(const Tensor&)>, bool);
  void protocol();
  void pushIValue(const c10::IValue&);
  void stop();
  const std::vector<Tensor>& tensorData();
};

}  // namespace jit

namespace autograd {

struct Edge {
  bool is_valid() const noexcept;
};
using variable_list = std::vector<Tensor>;
using edge_list = std::vector<Edge>;

namespace impl {
Edge gradient_edge(const Tensor&);
}

struct Engine {
  static Engine& get_default_engine();
  virtual variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph,
                                bool accumulate_grad, const edge_list& outputs = {});
};

variable_list grad(const variable_list& outputs, const variable_list& inputs);

}  // namespace autograd

template <class Key, class Value>
struct OrderedDict {
  struct Item {
    const Key& key() const noexcept;
    Value& value() noexcept;
    const Value& value() const noexcept;
    Value* operator->() noexcept;
    const Value* operator->() const noexcept;
  };
  const Item* begin() const;
  const Item* end() const;
  const Value* find(const Key&) const noexcept;
  bool contains(const Key&) const noexcept;
};

namespace nn {

class Module {
 public:
  virtual ~Module();
  const std::string& name() const noexcept;
  virtual bool is_training() const noexcept;
  virtual void to(c10::Device, bool = false);
  std::vector<std::shared_ptr<Module>> modules(bool = true) const;
  std::vector<Tensor> parameters(bool = true) const;
  OrderedDict<std::string, Tensor> named_parameters(bool = true) const;
  OrderedDict<std::string, Tensor> named_buffers(bool = true) const;
  OrderedDict<std::string, std::shared_ptr<Module>> named_children() const;
  template <class M>
  std::shared_ptr<M> register_module(std::string, std::shared_ptr<M>);
  Tensor& register_parameter(std::string, Tensor, bool = true);
  Tensor& register_buffer(std::string, Tensor);
};

class AnyModule {
 public:
  std::shared_ptr<Module> ptr() const;
  template <class Result, class... Arguments>
  Result forward(Arguments&&...);
};

struct dropout_options {
  const double& dropout() const noexcept;
};
struct MultiheadAttentionImpl : Module {
  dropout_options options;
};
struct RNNImpl : Module {
  dropout_options options;
};
struct LSTMImpl : Module {
  dropout_options options;
};
struct GRUImpl : Module {
  dropout_options options;
};
struct RReLUImpl : Module {};
struct FractionalMaxPool2dImpl : Module {};
struct FractionalMaxPool3dImpl : Module {};

struct LinearImpl : Module {
  LinearImpl(std::int64_t, std::int64_t);
  Tensor forward(const Tensor&);
};
struct Linear {
  Linear(std::int64_t, std::int64_t);
  std::shared_ptr<LinearImpl> ptr() const;
};

}  // namespace nn

namespace optim {

struct OptimizerParamState {
  virtual ~OptimizerParamState();
};
struct OptimizerOptions {
  virtual ~OptimizerOptions();
};
struct Optimizer {
  std::unordered_map<void*, std::unique_ptr<OptimizerParamState>>& state() noexcept;
};

struct AdamOptions : OptimizerOptions {
  AdamOptions(double = 1e-3);
  double lr() const;
  std::tuple<double, double> betas() const;
  double eps() const;
  double weight_decay() const;
  bool amsgrad() const;
};
struct AdamParamState : OptimizerParamState {
  void step(const std::int64_t&);
  void exp_avg(const Tensor&);
  void exp_avg_sq(const Tensor&);
  void max_exp_avg_sq(const Tensor&);
  const Tensor& max_exp_avg_sq() const;
};
struct AdamWOptions : AdamOptions {
  AdamWOptions(double = 1e-3);
};
struct AdamWParamState : AdamParamState {};
struct SGDOptions : OptimizerOptions {
  SGDOptions(double);
  double lr() const;
  double momentum() const;
  double dampening() const;
  double weight_decay() const;
  bool nesterov() const;
};
struct SGDParamState : OptimizerParamState {
  void momentum_buffer(const Tensor&);
  const Tensor& momentum_buffer() const;
};

struct Adam : Optimizer {
  Adam(std::vector<Tensor>, AdamOptions);
  Tensor step();
};
struct AdamW : Optimizer {
  AdamW(std::vector<Tensor>, AdamWOptions);
  Tensor step();
};
struct SGD : Optimizer {
  SGD(std::vector<Tensor>, SGDOptions);
  Tensor step();
};

}  // namespace optim

}  // namespace torch
