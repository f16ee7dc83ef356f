#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that tests/hostile (a room's ROOM_test.cpp, ROOM_*_test.cpp) calls every public free function of the folders below, by name, or that it is an exception with a
reason; and that no name is listed that these headers do not have. Functions of namespaces detail, and headers in folders of that
name, are not public. Members that tests/hostile calls as well (layout::part) are looked for by their last name.

usage: hostile_complete.py SOURCE | hostile_complete.py --self-test
"""
import pathlib
import re
import sys
import tempfile

FOLDERS = ["core", "cluster", "reshard", "schedule", "plan", "cost", "evaluate", "planners", "spmd"]

ANY_ENUMERATOR = "takes an enumerator, in inner loops: Requires"
ANY_TEXT = "takes any text"
EXCEPTIONS = {
    "core": {
        "as_size": "checked in Debug builds only: index arithmetic of inner loops",
        "at": "checked in Debug builds only: index arithmetic of inner loops",
    },
    "cluster": {
        "name_of": ANY_ENUMERATOR,
        "find_precision": ANY_TEXT,
        "find_recomputation": ANY_TEXT,
        "find_device": ANY_TEXT,
        "same_device": ANY_TEXT,
        "device_catalogue": "takes nothing",
    },
    "reshard": {
        "name_of": ANY_ENUMERATOR,
        "find_reshard_strategy": ANY_TEXT,
        "goes_in_chunks": "compares an enumerator",
    },
    "schedule": {
        **{
            name: ANY_ENUMERATOR
            for name in ["traits_of", "transfer_kind", "is_compute", "is_transfer", "is_parameter", "is_mark", "marked_kind", "post_of",
                         "wait_of", "takes_microbatch", "makes_tensor", "makes_gradient", "moves_gradient", "is_training"]
        },
        "is_issued": "compares an enumerator",
        "schedule_name": "takes any enumerator: an empty name for others",
        "schedule_names": "takes nothing",
        "deviation": "the ratio of any two numbers",
    },
    "plan": {
        "name_of": ANY_ENUMERATOR,
        "is_inference": "compares an enumerator",
        "objective_named": ANY_TEXT,
        "stage_name": "takes any numbers",
        "plan_targets": "takes nothing",
        "find_plan_target": ANY_TEXT,
        "value_of": ANY_ENUMERATOR,
        "matters": ANY_ENUMERATOR,
    },
    "cost": {
        "activation_bytes": "asked of layers that exist, by models that count them: Requires",
        "temporary_bytes": "asked of layers that exist, by models that count them: Requires",
        "layer_memory": "asked of layers that exist, by models that count them: Requires",
        "parameters_shared_in": "asked of layers that exist, by models that count them: Requires",
        "stage_memory": "has tests of what it refuses in tests/cost/memory",
        "layer_samples": "has tests of what it refuses in tests/cost/models",
        "default_efficiencies": ANY_TEXT,
        "find_generation": ANY_TEXT,
        "training_stacks": "takes nothing",
        "known_cases": "takes nothing",
        "cases_like": ANY_TEXT,
        "cases_text": "takes any lines",
        **{name: ANY_ENUMERATOR for name in ["fp32_per_watt", "matrix_per_watt", "multiplies_fp8", "multiplies_int8", "format_of", "attention_of", "flash_of", "memory_in"]},
        **{
            name: "of operators that predict_operator took: Requires"
            for name in ["point_of", "covariance", "residual_factor"]
        },
        "sum_of_layers": "of a cost model, in inner loops: Requires",
        "charge_sums": "of a price that check_cost took: Requires",
        "drop_copies": "of copies that check_copies took: Requires",
        "are_sliced": "at least one part, in inner loops: Requires",
        "describe": "of placements of the cluster: Requires",
    },
    "spmd": {
        "name_of": ANY_ENUMERATOR,
        "price_of": ANY_ENUMERATOR,
    },
    "planners": {
        "planners": "takes nothing",
        "planners_and_baselines": "takes nothing",
        "metis_partition": "checks as grow_and_refine; METIS is a component of its own",
    },
}

FUNCTION = re.compile(
    r"^(?!(?:return|using|namespace|throw|else|typedef|static_assert|struct|class|enum|friend|requires|concept)\b)"
    r"(?:\[\[[^\]]*\]\]\s*)*[\w:<>,&* ]*?[ &*>](?P<name>\w+)\(", re.M)
DOOR = re.compile(r"^    \{\"([\w:\[\]]+)\"|\{\"(operator\[\]|[\w:]+)\",\s*\[", re.M)


def public_text(text):
    """A header without comments, private namespaces and the bodies of braces below namespaces."""
    text = re.sub(r"//[^\n]*", "", text)
    text = text.replace("decltype(auto)", "auto")
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    out, i = [], 0
    stack = []  # of braces: whether what is in them is public
    for m in re.finditer(r"[{}]", text):
        head = text[i:m.start()]
        public = all(stack)
        if public:
            out.append(head)
        if m[0] == "{":
            name = re.search(r"\bnamespace\s+([\w:]+)\s*$", head)
            stack.append(bool(name) and "detail" not in name[1].split("::"))
            if public:
                out.append("{}\n")
        else:
            stack.pop()
        i = m.end()
    return "".join(out) + text[i:]


def functions_of(path):
    # What stands between braces and semicolons is a declaration, on one line.
    text = re.sub(r"^#.*$", "", public_text(path.read_text()), flags=re.M)
    for statement in re.split(r"[;{}]\s*", text):
        one = re.sub(r"template\s*<[^()]*?>\s*(?=\[\[|[a-z])", "", " ".join(statement.split()))
        if m := FUNCTION.match(one):
            if "operator" not in one[:m.end()] and "=" not in one[:m.end()]:
                yield m["name"]


def violations_of(source):
    include, tests = source / "include/hetsched", source / "tests/hostile"
    found = {}
    for folder in FOLDERS:
        headers = [p for p in sorted((include / folder).rglob("*.hpp")) if "detail" not in p.relative_to(include).parts]
        if not headers:
            yield f"no headers below {include / folder}"
        for path in headers:
            for name in functions_of(path):
                found.setdefault(folder.split("/")[0], {}).setdefault(name, path.relative_to(include))
    for room, functions in found.items():
        written = [p.read_text() for p in [*tests.glob(f"{room}_test.cpp"), *tests.glob(f"{room}_*_test.cpp")]]
        if not written:
            yield f"there is no tests/hostile/{room}_test.cpp"
            continue
        called = {a or b for a, b in DOOR.findall("".join(written))}
        for name, path in functions.items():
            if name not in called and name not in EXCEPTIONS.get(room, {}):
                yield f"include/hetsched/{path}: {name} is neither called in tests/hostile/{room}_test.cpp nor an exception"
        text = "".join(p.read_text() for folder in FOLDERS if folder.split("/")[0] == room for p in (include / folder).rglob("*.hpp"))
        for name in called:
            last = name.split("::")[-1]
            if not re.search(rf"(?<!\w){re.escape(last)}\b" if last[-1].isalnum() or last[-1] == "_" else re.escape(last), text):
                yield f"tests/hostile/{room}_test.cpp: there is no {name}"
        for name in EXCEPTIONS.get(room, {}):
            if name in called:
                yield f"{room}: {name} is called, and an exception"
            elif name not in functions:
                yield f"{room}: there is no {name}, an exception"


def self_test():
    global FOLDERS, EXCEPTIONS
    FOLDERS, EXCEPTIONS = ["a"], {"a": {"let_off": "a reason"}}
    header = """
namespace hetsched {
struct s { int member(int) const; };
namespace detail { int hidden(int); namespace unchecked { int also_hidden(int); } }
[[nodiscard]] int called(int n, const std::vector<int>& of = {});
template <class T>
[[nodiscard]] constexpr T let_off(T n) { return inside(n); }
/// With a comment(here).
inline constexpr int constant = f(3);
}
"""
    test = 'doors{\n    {"called",\n     [](random_source& r) {}},\n    {"s::member", [](random_source& r) {}},\n};'
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        source = pathlib.Path(name)
        for folder in ["include/hetsched/a/detail", "tests/hostile"]:
            (source / folder).mkdir(parents=True)
        (source / "include/hetsched/a/detail/private.hpp").write_text("namespace hetsched {\nint hidden_too(int);\n}")

        def count(h, t):
            (source / "include/hetsched/a/x.hpp").write_text(h)
            (source / "tests/hostile/a_test.cpp").write_text(t)
            return list(violations_of(source))

        wrong += [f"not allowed: {text}" for text in count(header, test)]
        planted = [
            (header.replace("inline constexpr", "double omitted(double s);\ninline constexpr"), test),
            (header.replace("inline constexpr", "template <class T>\nvoid omitted(const T& s) {}\ninline constexpr"), test),
            (header, test.replace("called", "gone", 1).replace("};", '    {"called", [](random_source& r) {}},\n};')),
            (header.replace("let_off", "renamed"), test.replace("};", '    {"renamed", [](random_source& r) {}},\n};')),
            (header, test.replace("};", '    {"let_off", [](random_source& r) {}},\n};')),
        ]
        for h, t in planted:
            if len(count(h, t)) != 1:
                wrong.append(f"not found, or not exactly once: {h}{t}: {count(h, t)}")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = self_test() if sys.argv[1] == "--self-test" else list(violations_of(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "no violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
