# SPDX-License-Identifier: Apache-2.0
"""hetsched for Conan 2: conan create cmake/conan"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"

# Component: the packages that it requires, and the libraries that no package brings.
COMPONENTS = {
    "io": (["nlohmann_json/[>=3.11 <4]"], []),
    "views": (["range-v3/[>=0.12 <1]"], []),
    "eigen": (["eigen/[>=3.4 <6]"], []),
    "gloo": ([], ["gloo", "pthread"]),
    "mpi": ([], ["mpi", "pthread"]),
    "cuda": ([], ["cudart_static", "dl", "rt", "pthread"]),
    "cuda_check": ([], ["pthread"]),
    "hip": ([], ["amdhip64", "pthread"]),
    "nccl": ([], ["nccl"]),
    "metis": (["metis/[>=5.1 <6]"], []),
    "compiled": ([], []),
}


class Hetsched(ConanFile):
    name = "hetsched"
    description = "Plans pipeline-parallel training on mixed GPUs"
    license = "Apache-2.0"
    topics = ("pipeline-parallelism", "scheduling", "gpu", "header-only")
    settings = "os", "arch", "compiler", "build_type"
    options = {name: [True, False] for name in COMPONENTS}
    default_options = {name: name == "io" for name in COMPONENTS}

    def _wanted(self):
        return [name for name in COMPONENTS if self.options.get_safe(name)]

    def _root(self, folder):
        return os.path.join(folder, "..", "..")

    def set_version(self):
        project = load(self, os.path.join(self._root(self.recipe_folder), "CMakeLists.txt"))
        self.version = re.search(r"project\(hetsched VERSION (\S+)", project)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*.cmake", "cmake/*.in", "include/*"):
            copy(self, pattern, self._root(self.recipe_folder), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        for name in self._wanted():
            for package in COMPONENTS[name][0]:
                self.requires(package, transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("hetsched is for Linux")
        if self.options.nccl and not self.options.cuda:
            raise ConanInvalidConfiguration("nccl=True needs cuda=True")

    def package_id(self):
        if not self.info.options.compiled:
            self.info.settings.clear()

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for name in COMPONENTS:
            option = "HETSCHED_BUILD_COMPILED" if name == "compiled" else f"HETSCHED_{name.upper()}"
            toolchain.cache_variables[option] = bool(self.options.get_safe(name))
        for name in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"HETSCHED_BUILD_{name}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # CMake finds the package by the files that it installs; what follows is for other build systems.
        self.cpp_info.set_property("cmake_find_mode", "none")
        core = self.cpp_info.components["hetsched"]
        core.builddirs = [os.path.join("lib", "cmake", "hetsched")]
        core.set_property("pkg_config_name", "hetsched")
        core.bindirs, core.libdirs = [], []
        for name in self._wanted():
            packages, libraries = COMPONENTS[name]
            part = self.cpp_info.components[name]
            part.set_property("pkg_config_name", f"hetsched-{name}")
            part.bindirs, part.libdirs = [], []
            part.requires = ["cuda" if name == "nccl" else "hetsched"]
            part.requires += [f"{p}::{p}" for p in (package.split("/")[0] for package in packages)]
            part.system_libs = libraries
        if self.options.compiled:
            rooms = [name for name in ("io", "gloo", "mpi") if self.options.get_safe(name)]
            for name in ["compiled", *(f"compiled_{room}" for room in rooms)]:
                part = self.cpp_info.components[name]
                part.set_property("pkg_config_name", f"hetsched-{name}")
                part.bindirs, part.libdirs, part.libs = [], ["lib"], [f"hetsched_{name}"]
                part.defines = ["HETSCHED_COMPILED"]
                part.requires = ["compiled", name.removeprefix("compiled_")] if name != "compiled" else ["hetsched"]
