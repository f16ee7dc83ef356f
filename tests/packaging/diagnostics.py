#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the compiler names what a user's tensor or layer lacks. usage: diagnostics.py INCLUDE_FOLDER COMPILER..."""
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


include, compilers = sys.argv[1], [c for c in sys.argv[2:] if c]
cases = [(c, missing) for c in compilers for missing in [None, *SAYS]]
with ThreadPoolExecutor(2) as pool:
    found = [text for text in pool.map(lambda case: wrong_with(include, *case), cases) if text]
print("\n".join(found) or f"{len(cases)} cases, all named")
sys.exit(bool(found))
