# SPDX-License-Identifier: Apache-2.0
# Finds what of LibTorch works on the host: HETSCHED_TORCH_FOUND, HETSCHED_TORCH_LIBRARIES, HETSCHED_TORCH_INCLUDES. Not by LibTorch's
# own files for CMake: in packages that are made for CUDA they want the toolkit, and make every program link NCCL. They lie in
# share/cmake, which is what PyTorch tells as its place in CMAKE_PREFIX_PATH.
set(hetsched_torch_places ${CMAKE_PREFIX_PATH})
list(TRANSFORM hetsched_torch_places APPEND "/../..")
find_path(HETSCHED_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h HINTS ${hetsched_torch_places} PATH_SUFFIXES include)
find_library(HETSCHED_TORCH_CPU torch_cpu HINTS ${hetsched_torch_places} PATH_SUFFIXES lib)
find_library(HETSCHED_TORCH_C10 c10 HINTS ${hetsched_torch_places} PATH_SUFFIXES lib)
set(HETSCHED_TORCH_LIBRARIES "${HETSCHED_TORCH_CPU}" "${HETSCHED_TORCH_C10}")
set(HETSCHED_TORCH_INCLUDES "${HETSCHED_TORCH_INCLUDE}" "${HETSCHED_TORCH_INCLUDE}/torch/csrc/api/include")
set(HETSCHED_TORCH_FOUND FALSE)
if(HETSCHED_TORCH_INCLUDE AND HETSCHED_TORCH_CPU AND HETSCHED_TORCH_C10)
  set(HETSCHED_TORCH_FOUND TRUE)
endif()
