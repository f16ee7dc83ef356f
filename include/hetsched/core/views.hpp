// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only door to range-v3, which takes 0.5 s to compile, and 0.1 s for every use. That is more than the budgets of
// <hetsched/core.hpp> and <hetsched/hetsched.hpp> leave, so neither opens it: include it where it is used. nvcc cannot parse
// range-v3 and gets small equivalents, some of which compute at once. Host and device sources of one program may then see
// different implementations under hetsched::views, so what is written with them has a namespace for each,
// hetsched::views::HETSCHED_VIEWS_KIND.

#include <concepts>
#include <type_traits>

#if !defined(__CUDACC__) && !defined(HETSCHED_VIEWS_FALLBACK)

#include <range/v3/view/cartesian_product.hpp>
#include <range/v3/view/chunk_by.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/join.hpp>
#include <range/v3/view/sliding.hpp>
#include <range/v3/view/transform.hpp>
#include <range/v3/view/zip.hpp>

#define HETSCHED_VIEWS_KIND lazy

/// Range adaptors from range-v3: those that C++20 lacks, and those of C++20 that are to be combined with them.
namespace hetsched::views {

using ::ranges::views::cartesian_product;
using ::ranges::views::chunk_by;
using ::ranges::views::filter;
using ::ranges::views::iota;
using ::ranges::views::join;
using ::ranges::views::sliding;
using ::ranges::views::transform;
using ::ranges::views::zip;

}  // namespace hetsched::views

#else

#include <cstddef>
#include <iterator>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>

#define HETSCHED_VIEWS_KIND eager

namespace hetsched::detail::eager_views {

struct zip_fn {
  template <std::ranges::viewable_range... R>
  requires(sizeof...(R) > 0) [[nodiscard]] auto operator()(R&&... ranges) const {
    std::vector<std::tuple<std::ranges::range_reference_t<R>...> > rows;
    std::tuple at{std::ranges::begin(ranges)...};
    const std::tuple ends{std::ranges::end(ranges)...};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      for (; ((std::get<I>(at) != std::get<I>(ends)) && ...); (++std::get<I>(at), ...)) rows.emplace_back(*std::get<I>(at)...);
    }
    (std::index_sequence_for<R...>{});
    return rows;
  }
};

struct cartesian_product_fn {
  template <std::ranges::viewable_range... R>
  requires(sizeof...(R) > 0 && (std::ranges::forward_range<R> && ...)) [[nodiscard]] auto operator()(R&&... ranges) const {
    std::vector<std::tuple<std::ranges::range_reference_t<R>...> > rows;
    extend(rows, std::tuple<>{}, ranges...);
    return rows;
  }

 private:
  // Appends every row that starts with `head`; the last range runs fastest.
  template <class Rows, class Head, class First, class... Rest>
  static void extend(Rows& rows, const Head& head, First& first, Rest&... rest) {
    for (auto at = std::ranges::begin(first); at != std::ranges::end(first); ++at) {
      auto longer = std::tuple_cat(head, std::tuple<std::ranges::range_reference_t<First> >(*at));
      if constexpr (sizeof...(Rest) == 0)
        rows.push_back(std::move(longer));
      else
        extend(rows, longer, rest...);
    }
  }
};

// r | f(x) is f(r, x).
template <class Adaptor, class Argument>
struct closure {
  Argument argument;

  template <std::ranges::viewable_range R>
  [[nodiscard]] friend auto operator|(R&& range, const closure& self) {
    return Adaptor{}(std::forward<R>(range), self.argument);
  }
};

// Subranges keep iterators only, hence borrowed ranges.
template <class R>
concept sliceable = std::ranges::forward_range<R> && std::ranges::borrowed_range<R>;

template <class R>
using slices = std::vector<std::ranges::subrange<std::ranges::iterator_t<R> > >;

struct sliding_fn {
  template <sliceable R>
  [[nodiscard]] slices<R> operator()(R&& range, std::ranges::range_difference_t<R> width) const {
    HETSCHED_EXPECTS(width > 0);
    slices<R> windows;
    auto first = std::ranges::begin(range);
    const auto end = std::ranges::end(range);
    auto last = first;
    if (std::ranges::advance(last, width, end) != 0) return windows;
    for (;; ++first, ++last) {
      windows.emplace_back(first, last);
      if (last == end) return windows;
    }
  }

  template <class Width>
  [[nodiscard]] constexpr closure<sliding_fn, Width> operator()(Width width) const {
    return {width};
  }
};

struct chunk_by_fn {
  template <sliceable R, class Predicate>
  [[nodiscard]] slices<R> operator()(R&& range, Predicate together) const {
    slices<R> chunks;
    auto first = std::ranges::begin(range);
    const auto end = std::ranges::end(range);
    while (first != end) {
      auto last = std::ranges::next(first);
      for (auto before = first; last != end && together(*before, *last); ++before) ++last;
      chunks.emplace_back(first, last);
      first = last;
    }
    return chunks;
  }

  template <class Predicate>
  [[nodiscard]] constexpr closure<chunk_by_fn, Predicate> operator()(Predicate together) const {
    return {std::move(together)};
  }
};

// Elements of ranges that stay where they are are shown, others are copied. nvcc cannot walk through std::views::join.
struct join_fn {
  template <std::ranges::input_range R>
  [[nodiscard]] auto operator()(R&& ranges) const {
    using inner = std::ranges::range_reference_t<R>;
    using item = std::ranges::range_reference_t<inner>;
    if constexpr (std::is_lvalue_reference_v<inner> && std::is_lvalue_reference_v<item>) {
      std::vector<std::remove_reference_t<item>*> places;
      for (auto&& range : ranges)
        for (auto& each : range) places.push_back(&each);
      return std::ranges::owning_view(std::move(places)) | std::views::transform([](auto* place) -> auto& { return *place; });
    } else {
      std::vector<std::ranges::range_value_t<inner> > items;
      for (auto&& range : ranges)
        for (auto&& each : range) items.push_back(each);
      return std::ranges::owning_view(std::move(items));
    }
  }
  template <std::ranges::input_range R>
  [[nodiscard]] friend auto operator|(R&& ranges, const join_fn& self) {
    return self(std::forward<R>(ranges));
  }
};

}  // namespace hetsched::detail::eager_views

/// The same adaptors as range-v3's; those that C++20 lacks, and join, are computed at once into a vector.
namespace hetsched::views {

using std::views::filter;
using std::views::iota;
using std::views::transform;
inline constexpr detail::eager_views::cartesian_product_fn cartesian_product{};
inline constexpr detail::eager_views::chunk_by_fn chunk_by{};
inline constexpr detail::eager_views::join_fn join{};
inline constexpr detail::eager_views::sliding_fn sliding{};
inline constexpr detail::eager_views::zip_fn zip{};

}  // namespace hetsched::views

#endif

namespace hetsched::views {

/// A T that a view shows, constant or not. Views are templates over it so that only those that are called are compiled; a
/// temporary, which would not live as long, does not fit.
template <class Shown, class T>
concept shown = std::same_as<std::remove_const_t<Shown>, T>;

}  // namespace hetsched::views
