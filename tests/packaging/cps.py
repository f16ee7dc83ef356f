#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the installed files of the Common Package Specification: usage cps.py PREFIX

They are JSON, name what is there, and say the same as the package's files for CMake: version, components, what each requires.
"""
import json
import pathlib
import re
import sys

KNOWN = {"cps_version", "name", "version", "compat_version", "cps_path", "requires", "components"}
# A target that is no component of a package, and what stands for it.
LIBRARIES = {"MPI::MPI_CXX": set(), "gloo": {"gloo"}, "metis": {"metis"}, "Threads::Threads": {"pthread"}, "CUDA::cudart_static": {"libcudart_static.a", "dl", "rt", "pthread"}}


def targets_of(text):
    """The one target of a *-targets.cmake and what it links."""
    name = re.search(r"add_library\(hetsched::(\w+) (?:INTERFACE|STATIC) IMPORTED\)", text)[1]
    linked = re.search(r'INTERFACE_LINK_LIBRARIES "([^"]*)"', text)
    return name, linked[1].split(";") if linked and linked[1] else []


def main():
    prefix = pathlib.Path(sys.argv[1])
    wrong = []
    folder = prefix / "share/cps/hetsched"
    cmake = next(prefix.glob("lib*/cmake/hetsched"))
    version = re.search(r'set\(PACKAGE_VERSION "([^"]+)"\)', (cmake / "hetsched-config-version.cmake").read_text())[1]
    files = sorted(cmake.glob("hetsched*-targets.cmake"))
    if {f.stem for f in folder.iterdir()} != {f.name.removesuffix("-targets.cmake") for f in files}:
        wrong.append("not the components that there are for CMake")
    for file in files:
        stem = file.name.removesuffix("-targets.cmake")
        component, linked = targets_of(file.read_text())
        said = json.loads((folder / (stem + ".cps")).read_text())

        def must(truth, what):
            if not truth:
                wrong.append(f"{stem}.cps: {what}")

        must(set(said) <= KNOWN, "an unknown member")
        must(said["name"] == "hetsched" and re.fullmatch(r"0\.14(\.\d+)?", said["cps_version"]), "name or cps_version")
        must(said.get("version") == (version if stem == "hetsched" else None), "the version belongs to the package, not to an appendix")
        must(said["cps_path"] == "@prefix@/" + folder.relative_to(prefix).as_posix(), "cps_path is not where it lies")
        must(list(said["components"]) == [component], f"not the component {component}")
        part = said["components"][component]
        archive = component.startswith("compiled")
        must(part["type"] == ("archive" if archive else "interface") and part["compile_features"] == ["c++20"], "type or compile_features")
        if archive:
            must(pathlib.Path(part["location"].replace("@prefix@", str(prefix))).is_file(), "the library is not where it says")
            must(part["definitions"] == {"*": {"HETSCHED_COMPILED": None}}, "definitions")
        for include in part["includes"]:
            must(pathlib.Path(include.replace("@prefix@", str(prefix))).is_dir(), f"there is no {include}")
        must((prefix / "include/hetsched/hetsched.hpp").is_file() and part["includes"][0] == "@prefix@/include", "the headers' folder")
        requires = set(part.get("requires", []))
        libraries = {pathlib.Path(l).name for l in part.get("link_libraries", [])}
        expected, expected_libraries = set(), set()
        for target in linked:
            if target in LIBRARIES:
                expected_libraries |= LIBRARIES[target]
            else:
                package, name = target.split("::")
                expected.add(f"{'' if package == 'hetsched' else package}:{name}")
        if component not in ("hip", "mpi", "nccl", "torch"):  # their libraries are found anew by the package's file for CMake
            must(libraries == expected_libraries, f"link_libraries {libraries}, expected {expected_libraries}")
        must(requires == expected, f"requires {requires}, expected {expected}")
        packages = {r.split(":")[0] for r in requires} - {""}
        must(set(said["requires"]) == packages, f"package requirements {set(said['requires'])}, expected {packages}")
    print("\n".join(wrong) or f"{len(files)} files agree")
    sys.exit(1 if wrong else 0)


main()
