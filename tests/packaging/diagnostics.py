#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the compiler names what a user's tensor or layer lacks, first and without many words, and that a column-major matrix
or tensor of Eigen is refused by one message. Of the cases, one in four by each compiler, unless --all are asked for: a compilation
takes seconds. usage: diagnostics.py [--all] INCLUDE_FOLDER EIGEN_FOLDER COMPILER..."""
import functools
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TENSOR = {
    "value_type": "using value_type = float;",
    "default constructor": "tensor() = default;",
    "constructor": "explicit tensor(const hetsched::tensor_shape&);",
    "shape": "hetsched::tensor_shape shape() const;",
    "data": "float* data();",
    "const data": "const float* data() const;",
}
LAYER = {
    "context": "struct context {};",
    "forward": "tensor forward(const tensor&, context&);",
    "backward": "tensor backward(const tensor&, context&);",
    "parameters": "std::vector<tensor>& parameters();",
    "gradients": "std::vector<tensor>& gradients();",
}
SAYS = {
    "value_type": "the tensor has no member type value_type",
    "default constructor": "the tensor is not movable and default-constructible",
    "constructor": "the tensor has no constructor from a tensor_shape",
    "shape": "the tensor has no shape() that returns a range",
    "data": "the tensor has no data() that returns a pointer, also if it is const",
    "const data": "the tensor has no data() that returns a pointer, also if it is const",
    "context": "the layer has no member type `context`",
    "forward": "the layer has no forward(const Tensor&, context&)",
    "backward": "the layer has no backward(const Tensor&, context&)",
    "parameters": "the layer has no parameters() that returns a range",
    "gradients": "the layer has no gradients() that returns a range",
}
ENDS = {  # members that return tensors by value, to which references are kept
    "parameters": "std::vector<tensor> parameters();",
    "gradients": "std::array<tensor, 2> gradients();",
    "buffers": "std::list<tensor> buffers();",
}


def program(missing):
    def members(of):
        return "\n".join(text for name, text in of.items() if name != missing and not (missing == "data" and name == "const data"))

    layer = members(LAYER)
    if missing == "context":
        layer = layer.replace("context&", "int&")
    return (
        f"struct tensor {{ {members(TENSOR)} }};\nstruct layer {{ {layer} }};\n"
        "int main() { hetsched::detail::require_layer<layer, tensor>(); return 0; }\n"
    )


def trainer(tensor, layer):
    """A training, as in the documentation."""
    return (
        f"struct tensor {{ {tensor} }};\nstruct layer {{ {layer} }};\n"
        "using channels = hetsched::thread_communicator<tensor>;\n"
        "int main() {\n"
        "  const auto layout = hetsched::even_layout(2, hetsched::gpipe(2, 2));\n"
        "  hetsched::run_on_threads(channels::connect(2), [&](channels& channel) {\n"
        "    auto trainer = hetsched::make_trainer<tensor>(layout, [](int) { return layer(); },\n"
        "                                                  [](int) { return hetsched::tensor_shape{1}; }, channel, hetsched::sgd{});\n"
        "    const std::vector<tensor> batch(2);\n"
        "    trainer.step(std::span(batch), std::span(batch),\n"
        "                 [](const tensor& y, const tensor&) { return hetsched::loss_value<tensor>{1, y}; });\n"
        "  });\n"
        "}\n"
    )


INCLUDES = """
#include <array>
#include <list>
#include <span>
#include <string>
#include <vector>
#include <unsupported/Eigen/CXX11/Tensor>
#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/partition.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/runtime/eigen.hpp>
#include <hetsched/runtime/group/any_communicator.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>
"""


@functools.lru_cache(maxsize=None)
def precompiled(compiler, flags):
    """Options by which a compiler has read the includes already: cases differ by a few lines."""
    header = Path(work) / f"{abs(hash(compiler))}.hpp"
    header.write_text(INCLUDES)
    clang = "clang" in compiler
    output = f"{header}.pch" if clang else f"{header}.gch"
    subprocess.run([compiler, *flags, "-x", "c++-header", header, "-o", output], check=True)
    return ["-include-pch", output] if clang else ["-include", str(header)]


def compile(include, compiler, text):
    flags = ("-std=c++20", f"-I{include}", "-isystem", eigen, "-DHETSCHED_COMPILED")
    with making[compiler]:
        base = precompiled(compiler, flags)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "user.cpp"
        source.write_text(text)
        return subprocess.run([compiler, *flags, *base, "-fsyntax-only", source], capture_output=True, text=True)


def wrong_in_training(include, compiler, case):
    """A training with a tensor that lacks its const data(), or a layer with a member of ENDS, has few errors; the first names it."""
    tensor = "\n".join(t for name, t in TENSOR.items() if case != name)
    layer = "\n".join({**LAYER, **({case: ENDS[case]} if case in ENDS else {})}.values())
    ran = compile(include, compiler, trainer(tensor, layer))
    errors = [line for line in ran.stderr.splitlines() if " error: " in line]
    says, most = (f"the layer's {case}() returns tensors by value", 1) if case in ENDS else (SAYS.get(case), 2)
    if case is None:
        return f"{compiler}: a training that lacks nothing is refused:\n{ran.stderr}" if ran.returncode else None
    if not errors or says not in errors[0] or len(errors) > most:
        return f"{compiler}: a training, {case}: not at most {most} errors of which the first says: {says}\n" + "\n".join(errors)
    return None


def wrong_with(include, compiler, missing):
    ran = compile(include, compiler, program(missing))
    if missing is None:
        return f"{compiler}: a tensor and a layer that lack nothing are refused:\n{ran.stderr}" if ran.returncode else None
    if ran.returncode == 0:
        return f"{compiler}: no error without {missing}"
    return None if SAYS[missing] in ran.stderr else f"{compiler}: without {missing}, not said: {SAYS[missing]}\n{ran.stderr[:2000]}"


CHANNEL = {
    "operation": "struct operation { double end_s = 0; };",
    "rank": "int rank() const;",
    "ranks": "int ranks() const;",
    "open": "int open(const hetsched::edge&);",
    "post_send": "void post_send(int, const hetsched::stamp&, tensor&, operation&);",
    "post_receive": "void post_receive(int, const hetsched::stamp&, tensor&, operation&);",
    "poll": "bool poll(operation&);",
    "wait": "hetsched::wait_result wait(hetsched::deadline_time, bool);",
    "abort": "void abort(const std::string&);",
    "failure": "std::string failure() const;",
    "gather": "hetsched::wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, hetsched::deadline_time);",
    "post_send_bytes": "void post_send_bytes(int, const hetsched::stamp&, std::span<const std::byte>, operation&);",
    "post_receive_bytes": "void post_receive_bytes(int, const hetsched::stamp&, std::span<std::byte>, operation&);",
}
CHANNEL_USES = {
    "a training": "auto trainer = hetsched::make_trainer<tensor>(hetsched::even_layout(2, hetsched::gpipe(2, 2)), [](int) { return layer(); },"
    " [](int) { return hetsched::tensor_shape{1}; }, channel(), hetsched::sgd{}); const std::vector<tensor> batch(2);"
    " trainer.step(std::span(batch), std::span(batch), [](const tensor& y, const tensor&) { return hetsched::loss_value<tensor>{1, y}; });",
    "links": "channel c; (void)hetsched::profile_link<tensor>(c, 0, 1, 0);",
    "any communicator": "const hetsched::any_communicator<tensor> held{channel()};",
}
OTHER_RESULT = {  # members of which the result is another one
    "open": "void open(const hetsched::edge&);",
    "poll": "int poll(operation&);",
    "wait": "bool wait(hetsched::deadline_time, bool);",
}
# Not every member in every use: a compilation takes seconds.
LACKING = [("a training", name, "") for name in ["post_send", "failure", "gather"]] + [("links", name, "") for name in CHANNEL if "bytes" not in name]
LACKING += [("any communicator", name, "") for name in ["rank", "post_receive", "post_send_bytes"]]
LACKING += [(use, name, text) for use, (name, text) in zip([*CHANNEL_USES, "links"], [*OTHER_RESULT.items()])]
LACKING += [(use, None, "") for use in CHANNEL_USES]


def wrong_with_channel(include, compiler, case):
    """A user's communicator that lacks a member, or has it with another result: at most two errors, the first of which names it."""
    use, missing, instead = case
    channel = "\n".join(text for name, text in CHANNEL.items() if name != missing and not (missing == "operation" and "operation" in text))
    members = ["\n".join(of.values()) for of in (TENSOR, LAYER)]
    ran = compile(include, compiler,
                  f"struct tensor {{ {members[0]} }};\nstruct layer {{ {members[1]} }};\nstruct channel {{ {channel} {instead} }};\n"
                  f"void use() {{ {CHANNEL_USES[use]} }}\n")
    errors = [line for line in ran.stderr.splitlines() if " error: " in line]
    if missing is None:
        return f"{compiler}: {use}, a communicator that lacks nothing is refused:\n{ran.stderr[:2000]}" if errors else None
    says = "the communicator has no " + ("member type `operation`" if missing == "operation" else f"{missing}(")
    if not errors or says not in errors[0] or len(errors) > 2:
        return f"{compiler}: {use}, communicator without {missing} {instead}: not at most 2 errors of which the first says: {says}\n" + "\n".join(errors)
    return None


COSTS = {
    "layer_count": "int layer_count() const;",
    "placements": "std::vector<hetsched::placement> placements(const hetsched::submesh&) const;",
    "stage": "hetsched::stage_cost stage(hetsched::layer_range, const hetsched::placement&) const;",
    "transfer": "double transfer(int, const hetsched::placement&, const hetsched::placement&) const;",
}
# A planner's call, an evaluation, and a partition, with something wrong: what the first of at most two errors says.
CALLS = "hetsched::interop_dp(hardware, costs(), {.microbatches = 4})", "hetsched::evaluate(hardware, costs(), hetsched::plan{})"
PLANNING = {
    **{f"{name} lacking": ({n: t for n, t in COSTS.items() if n != name}, call, f"the cost model has no {name}(") for name in COSTS for call in CALLS[:1]},
    "not const": ({**COSTS, "stage": COSTS["stage"].replace(" const;", ";")}, CALLS[1], "the cost model has no stage("),
    "another result": ({**COSTS, "placements": "int placements(const hetsched::submesh&) const;"}, CALLS[0], "the cost model has no placements("),
    "names for numbers": (COSTS, "hetsched::number_table(std::vector<std::string>{})", "number_table"),
    "a misspelt member": (COSTS, "hetsched::partition_problem{.second = {1, 2}, .devices = {4}}", "second"),
    "transfers by name": (COSTS, 'hetsched::h1f1b_warmups(std::vector<double>{1, 2}, std::vector<std::string>{"slow"})', "h1f1b_warmups"),
    "nothing lacking": (COSTS, "std::pair(" + ", ".join(CALLS) + ")", None),
}


def wrong_in_planning(include, compiler, case):
    members, call, says = PLANNING[case]
    ran = compile(include, compiler,
                  f"struct costs {{ {' '.join(members.values())} }};\n"
                  f"void call(const hetsched::cluster& hardware) {{ (void)hardware; (void){call}; }}\n")
    errors = [line for line in ran.stderr.splitlines() if " error: " in line]
    if says is None:
        return f"{compiler}: costs that lack nothing are refused:\n{ran.stderr[:2000]}" if errors else None
    if not errors or says not in errors[0] or len(errors) > 2:
        return f"{compiler}: costs, {case}: not at most 2 errors of which the first says: {says}\n" + "\n".join(errors)
    return None


# A trainer on Eigen's types. Column-major ones would be cut at the wrong places.
EIGEN = """
using tensor = %s;
struct layer {
  struct context {};
  tensor forward(const tensor&, context&);
  tensor backward(const tensor&, context&);
  std::vector<tensor>& parameters();
  std::vector<tensor>& gradients();
};
void train(const hetsched::training_layout& layout, const std::vector<tensor>& inputs) {
  using channels = hetsched::thread_communicator<tensor>;
  hetsched::run_on_threads(channels::connect(layout.ranks()), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<tensor>(
        layout, [](int) { return layer(); }, [](int) { return hetsched::tensor_shape{1, 2}; }, channel, hetsched::sgd());
    trainer.step(inputs, inputs, [](const tensor& y, const tensor&) { return hetsched::loss_value<tensor>{0, y}; });
  });
}
"""
TAKEN = ["Eigen::Matrix<float, -1, -1, Eigen::RowMajor>", "Eigen::Tensor<double, 3, Eigen::RowMajor>"]
REFUSED = ["Eigen::MatrixXf", "Eigen::Matrix<double, 2, 2, Eigen::RowMajor>", "Eigen::Tensor<float, 3>"]


def wrong_with_eigen(include, compiler, tensor):
    ran = compile(include, compiler, EIGEN % tensor)
    if tensor in TAKEN:
        return f"{compiler}: {tensor} is refused:\n{ran.stderr}" if ran.returncode else None
    errors = [line for line in ran.stderr.splitlines() if "error: " in line]
    if len(errors) == 1 and "a pipeline takes Eigen's matrices and tensors if they are row-major and of any size" in errors[0]:
        return None
    return f"{compiler}: {tensor} is not refused by one message:\n{ran.stderr[:2000]}"


everything = sys.argv[1] == "--all"
include, eigen, *compilers = (word for word in sys.argv[1 + everything:] if word)
cases = [(wrong_with, c, missing) for c in compilers for missing in [None, *SAYS]]
cases += [(wrong_in_training, c, case) for c in compilers for case in [None, "const data", *ENDS]]
cases += [(wrong_with_channel, c, case) for c in compilers for case in LACKING]
cases += [(wrong_in_planning, c, case) for c in compilers for case in PLANNING]
cases += [(wrong_with_eigen, c, tensor) for c in compilers for tensor in TAKEN + REFUSED]
if not everything:
    cases = [case for number, case in enumerate(cases) if number % 4 == 0]
making = {c: threading.Lock() for c in compilers}
with ThreadPoolExecutor(2) as pool, tempfile.TemporaryDirectory() as work:
    found = [text for text in pool.map(lambda case: case[0](include, *case[1:]), cases) if text]
print("\n".join(found) or f"{len(cases)} cases, all named")
sys.exit(bool(found))
