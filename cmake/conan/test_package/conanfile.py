# SPDX-License-Identifier: Apache-2.0
"""Builds and runs a program of each component, as a project of its own that finds the package."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout


class HetschedTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def _programs(self):
        options = self.dependencies["hetsched"].options
        return [name for name in ("io", "views", "gloo", "mpi", "cuda", "hip", "nccl", "metis", "compiled") if options.get_safe(name)] or ["core"]

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["HETSCHED_COMPONENTS"] = ";".join(n for n in self._programs() if n != "core")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            for name in self._programs():
                self.run(os.path.join(self.cpp.build.bindir, name + "_app"), env="conanrun")
