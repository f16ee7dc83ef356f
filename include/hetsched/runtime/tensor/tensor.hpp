// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/layer/layer_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <hetsched/core/index.hpp>

namespace hetsched {

/// Where a tensor's bytes are.
enum class memory_space : std::uint8_t { host, pinned, device };

/// Extents, the slowest first; a scalar has none.
using tensor_shape = std::vector<std::size_t>;

/// How the runtime sees a user's tensor type. Specialise it for types that lack the members below; a specialisation has
///   element                             type of an element, trivially copyable
///   space                               memory_space, a constant
///   shape(const T&)                     a range of integers
///   data(T&), data(const T&)            first of its elements, which are contiguous
///   make(const tensor_shape&)           a tensor of this shape, its elements of any value
/// where a tensor may be a view of another one's elements (transposed, every second row),
///   contiguous(const T&)                whether they lie one after the other from data() on, the last extent running fastest;
///                                       then what is not so is refused wherever it is handed over
/// where copies of a tensor are the same elements, so that a layer's may be another's, too,
///   is_handle                           a constant; such parameters cannot be gathered for each use (ZeRO stage 3)
/// and, where the space is not the host's, zero(T&), assign(T&, const T&), add(T&, const T&), scale(T&, double) and, to be
/// trained,
///   copy_rows(T& to, first, stride, const T& from, first, stride, length, rows)
///                                       rows of so many elements, that begin at first + row * stride
///   add_squares(detail::square_sum&, const T&, const strided_runs&)
///                                       for norms; on a device, see detail::squares_on_queue
/// On a device the rank's queue, of the type `queue`, may be a last argument of all of these and of make: then work is enqueued
/// there, and not waited for. Tensors that other queues use too know when that is; work on a queue is put between
///   begin_read(const T&, queue), end_read(const T&, queue, moment)
///                                       what is enqueued in between finds what was written, and nobody writes before its end
///   end_write(T&, queue, moment)        the tensor is ready at this moment
/// Gradients travel in tensors of the shape {1, elements}.
template <class T>
struct tensor_traits {};

/// Types with value_type, shape(), data() and a constructor from a shape fit as they are. They are in host memory unless they
/// have a constant `space`; is_contiguous(), if they have it, tells what `contiguous` does.
template <class T>
requires requires(T& t, const T& c, const tensor_shape& s) {
  typename T::value_type;
  c.shape();
  { t.data() } -> std::same_as<typename T::value_type*>;
  { c.data() } -> std::convertible_to<const typename T::value_type*>;
  T(s);
}
struct tensor_traits<T> {
  using element = typename T::value_type;
  static constexpr memory_space space = [] {
    if constexpr (requires { T::space; })
      return T::space;
    else
      return memory_space::host;
  }();
  static decltype(auto) shape(const T& t) { return t.shape(); }
  static element* data(T& t) { return t.data(); }
  static const element* data(const T& t) { return t.data(); }
  static T make(const tensor_shape& s) { return T(s); }
  static bool contiguous(const T& t) requires requires {
    { t.is_contiguous() } -> std::convertible_to<bool>;
  }
  { return t.is_contiguous(); }
};

/// A tensor that can travel and be summed. A default-constructed one is empty and may be assigned to.
/// Not checked: that the elements are as many as the shape says, that they are contiguous unless the traits tell, and that moving
/// and swapping do not copy (they may, at a price).
template <class T>
concept pipeline_tensor = std::movable<T> && std::default_initializable<T> && requires(T& t, const T& c) {
  typename tensor_traits<T>::element;
  requires std::is_trivially_copyable_v<typename tensor_traits<T>::element>;
  { *std::begin(tensor_traits<T>::shape(c)) } -> std::convertible_to<std::size_t>;
  std::end(tensor_traits<T>::shape(c));
  { tensor_traits<T>::data(t) } -> std::same_as<typename tensor_traits<T>::element*>;
  { tensor_traits<T>::data(c) } -> std::same_as<const typename tensor_traits<T>::element*>;
  { tensor_traits<T>::space } -> std::convertible_to<memory_space>;
} &&(
    requires(const tensor_shape& s) {
      { tensor_traits<T>::make(s) } -> std::same_as<T>;
    } ||
    requires(const tensor_shape& s, const typename tensor_traits<T>::queue& q) {
      { tensor_traits<T>::make(s, q) } -> std::same_as<T>;
    });

namespace detail {

template <class T>
concept has_shape_member = requires(const T& t) {
  *std::begin(t.shape());
};
template <class T>
concept has_data_member = requires(T& t, const T& c) {
  *t.data(), *c.data();
};
template <class T>
concept has_tensor_members = requires(const tensor_shape& s) {
  typename T::value_type;
  T(s);
}
&&has_shape_member<T>&& has_data_member<T>;

/// Says what a tensor lacks, one message for each member; the first thing that everything that is made for a tensor type asks.
template <class T>
consteval void require_tensor() {
  constexpr bool values = std::movable<T> && std::default_initializable<T>;
  static_assert(values, "the tensor is not movable and default-constructible");
  if constexpr (values && !requires { typename tensor_traits<T>::element; } && !has_tensor_members<T>) {
    static_assert(
        requires { typename T::value_type; }, "the tensor has no member type value_type");
    static_assert(has_shape_member<T>, "the tensor has no shape() that returns a range");
    static_assert(has_data_member<T>, "the tensor has no data() that returns a pointer, also if it is const");
    static_assert(
        requires(const tensor_shape& s) { T(s); }, "the tensor has no constructor from a tensor_shape");
  } else if constexpr (values) {
    static_assert(pipeline_tensor<T>,
                  "this is no pipeline_tensor: it needs tensor_traits<T> with element, space, shape, data and make "
                  "(or the members value_type, shape(), data() and a constructor from tensor_shape)");
  }
}

/// Whether the host may touch its elements; of what is no tensor, too, of which require_tensor says so.
template <class T>
inline constexpr bool on_host = [] {
  if constexpr (requires { tensor_traits<T>::space; })
    return tensor_traits<T>::space != memory_space::device;
  else
    return true;
}();

template <pipeline_tensor T>
[[nodiscard]] std::size_t elements(const T& t) {
  std::size_t count = 1;
  for (const auto extent : tensor_traits<T>::shape(t)) count *= as_size(extent);
  return count;
}

template <class X, class Y>
[[nodiscard]] bool same_extents(const X& x, const Y& y) {
  auto i = std::begin(x);
  auto j = std::begin(y);
  for (; i != std::end(x) && j != std::end(y); ++i, ++j)
    if (as_size(*i) != as_size(*j)) return false;
  return i == std::end(x) && j == std::end(y);
}
template <pipeline_tensor T>
[[nodiscard]] bool same_shape(const T& a, const T& b) {
  return same_extents(tensor_traits<T>::shape(a), tensor_traits<T>::shape(b));
}

template <pipeline_tensor T>
[[nodiscard]] tensor_shape shape_of(const T& t) {
  tensor_shape shape;
  for (const auto extent : tensor_traits<T>::shape(t)) shape.push_back(as_size(extent));
  return shape;
}

/// "2 x 3"; of a scalar "1 element".
[[nodiscard]] std::string extents_text(const tensor_shape& shape);
/// Throws: input_error.
[[noreturn]] void refuse_strided(std::string_view what, const tensor_shape& shape);
[[noreturn]] void refuse_shape(std::string_view what, const tensor_shape& found, const tensor_shape& expected);

/// Where the traits do not tell, it is taken to be so.
template <pipeline_tensor T>
[[nodiscard]] bool is_contiguous([[maybe_unused]] const T& t) {
  if constexpr (requires {
                  { tensor_traits<T>::contiguous(t) } -> std::convertible_to<bool>;
                })
    return tensor_traits<T>::contiguous(t);
  else
    return true;
}
/// Throws: input_error for a tensor whose elements are not contiguous. `what`: it is.
template <pipeline_tensor T>
void require_contiguous(const T& t, std::string_view what) {
  if (!is_contiguous(t)) refuse_strided(what, shape_of(t));
}
/// Throws: input_error for one of another shape, too.
template <pipeline_tensor T>
void require_handed_over(const T& t, const tensor_shape& expected, std::string_view what) {
  if (!same_extents(tensor_traits<T>::shape(t), expected)) refuse_shape(what, shape_of(t), expected);
  require_contiguous(t, what);
}

/// Sets all elements to 0: on the host, unless tensor_traits know better.
template <pipeline_tensor T>
void zero(T& t) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::zero(t); }) {
    traits::zero(t);
  } else {
    static_assert(traits::space != memory_space::device, "tensor_traits<T>::zero(T&) is missing for tensors in device memory");
    if (const std::size_t n = elements(t); n > 0)
      std::memset(static_cast<void*>(traits::data(t)), 0, n * sizeof(typename traits::element));
  }
}

/// to = from.
/// Requires: same shape.
template <pipeline_tensor T>
void assign(T& to, const T& from) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::assign(to, from); }) {
    traits::assign(to, from);
  } else {
    static_assert(traits::space != memory_space::device,
                  "tensor_traits<T>::assign(T&, const T&) is missing for tensors in device memory");
    // An empty tensor may have no address.
    if (const std::size_t n = elements(to); n > 0)
      std::memcpy(traits::data(to), traits::data(from), n * sizeof(typename traits::element));
  }
}

/// Elements of a user's type that are computed with as floats, such as half or bfloat16.
template <class Element>
concept small_float = !std::is_arithmetic_v<Element> && requires(Element e, float f) {
  static_cast<float>(e);
  static_cast<Element>(f);
};
template <class Element>
concept host_number = std::is_arithmetic_v<Element> || small_float<Element>;
/// a + b, rounded to an element.
template <class Element>
[[nodiscard]] constexpr Element sum_of(const Element& a, const Element& b) {
  if constexpr (small_float<Element>)
    return static_cast<Element>(static_cast<float>(a) + static_cast<float>(b));
  else
    return static_cast<Element>(a + b);
}
template <class Element>
[[nodiscard]] constexpr double as_double(const Element& e) {
  if constexpr (small_float<Element>)
    return static_cast<double>(static_cast<float>(e));
  else
    return static_cast<double>(e);
}

/// sum += term.
/// Requires: same shape.
template <pipeline_tensor T>
void add(T& sum, const T& term) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::add(sum, term); }) {
    traits::add(sum, term);
  } else {
    using element = typename traits::element;
    static_assert(traits::space != memory_space::device && host_number<element>,
                  "tensor_traits<T>::add(T&, const T&) is missing for tensors in device memory or of elements of a user's type");
    auto* const to = traits::data(sum);
    const auto* const from = traits::data(term);
    for (std::size_t i = 0, n = elements(sum); i < n; ++i) to[i] = sum_of<element>(to[i], from[i]);
  }
}

template <pipeline_tensor T>
void scale(T& t, double factor) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::scale(t, factor); }) {
    traits::scale(t, factor);
  } else {
    using element = typename traits::element;
    static_assert(traits::space != memory_space::device && host_number<element>,
                  "tensor_traits<T>::scale(T&, double) is missing for tensors in device memory or of elements of a user's type");
    auto* const data = traits::data(t);
    const auto by = static_cast<std::conditional_t<small_float<element>, float, element>>(factor);
    for (std::size_t i = 0, n = elements(t); i < n; ++i) {
      if constexpr (small_float<element>)
        data[i] = static_cast<element>(static_cast<float>(data[i]) * by);
      else
        data[i] = static_cast<element>(data[i] * by);
    }
  }
}

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/tensor/tensor.ipp>
#endif
