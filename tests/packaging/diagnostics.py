#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the compiler names what a user's tensor or layer lacks. And that a column-major matrix
or tensor of Eigen is refused by one message. usage: diagnostics.py INCLUDE_FOLDER EIGEN_FOLDER COMPILER..."""
import subprocess
import sys
import tempfile
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


def program(missing):
    def members(of):
        return "\n".join(text for name, text in of.items() if name != missing and not (missing == "data" and name == "const data"))

    layer = members(LAYER)
    if missing == "context":
        layer = layer.replace("context&", "int&")
    return (
        "#include <vector>\n#include <hetsched/runtime/layer/layer.hpp>\n"
        f"struct tensor {{ {members(TENSOR)} }};\nstruct layer {{ {layer} }};\n"
        "int main() { hetsched::detail::require_layer<layer, tensor>(); return 0; }\n"
    )


def wrong_with(include, compiler, missing):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "user.cpp"
        source.write_text(program(missing))
        ran = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", source], capture_output=True, text=True)
    if missing is None:
        return f"{compiler}: a tensor and a layer that lack nothing are refused:\n{ran.stderr}" if ran.returncode else None
    if ran.returncode == 0:
        return f"{compiler}: no error without {missing}"
    return None if SAYS[missing] in ran.stderr else f"{compiler}: without {missing}, not said: {SAYS[missing]}\n{ran.stderr[:2000]}"


# A trainer on Eigen's types. Column-major ones would be cut at the wrong places.
EIGEN = """
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>
#include <hetsched/runtime.hpp>
#include <hetsched/runtime/eigen.hpp>
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


def wrong_with_eigen(include, eigen, compiler, tensor):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "user.cpp"
        source.write_text(EIGEN % tensor)
        command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", "-isystem", eigen, source]
        ran = subprocess.run(command, capture_output=True, text=True)
    if tensor in TAKEN:
        return f"{compiler}: {tensor} is refused:\n{ran.stderr}" if ran.returncode else None
    errors = [line for line in ran.stderr.splitlines() if "error: " in line]
    if len(errors) == 1 and "a pipeline takes Eigen's matrices and tensors if they are row-major and of any size" in errors[0]:
        return None
    return f"{compiler}: {tensor} is not refused by one message:\n{ran.stderr[:2000]}"


include, eigen, compilers = sys.argv[1], sys.argv[2], [c for c in sys.argv[3:] if c]
cases = [(c, missing) for c in compilers for missing in [None, *SAYS]]
with ThreadPoolExecutor(2) as pool:
    found = [text for text in pool.map(lambda case: wrong_with(include, *case), cases) if text]
    on_eigen = [(c, tensor) for c in compilers for tensor in TAKEN + REFUSED]
    found += [text for text in pool.map(lambda case: wrong_with_eigen(include, eigen, *case), on_eigen) if text]
print("\n".join(found) or f"{len(cases) + len(on_eigen)} cases, all named")
sys.exit(bool(found))
