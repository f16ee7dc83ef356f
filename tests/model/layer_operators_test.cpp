// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/layer_operators.hpp>

#include <doctest/doctest.h>

using namespace hetsched;

namespace {

struct least {
  layer_chain chain() const;
  layer_operators operators(int, layer_share) const;
  int kind(int) const;
};

struct without_kind {
  layer_chain chain() const;
  layer_operators operators(int, layer_share) const;
};

struct changed_by_questions : least {
  layer_operators operators(int, layer_share);
};

struct without_shares : least {
  layer_operators operators(int) const;
};

struct of_one_operator : least {
  operator_use operators(int, layer_share) const;
};

static_assert(operator_model<least>);
static_assert(!operator_model<without_kind>);
static_assert(!operator_model<changed_by_questions>);
static_assert(!operator_model<without_shares>);
static_assert(!operator_model<of_one_operator>);
static_assert(!operator_model<layer_chain>);

}  // namespace

TEST_CASE("a share is of the whole layer and one sample, unless it says otherwise") {
  CHECK(layer_share{} == layer_share{.samples = 1, .context = 1, .tensor = 1});
  CHECK(layer_operators{} == layer_operators{.forward = {}, .backward = {}, .weight_backward = {}, .selective = {}});
}
