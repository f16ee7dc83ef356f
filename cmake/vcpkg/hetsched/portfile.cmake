# SPDX-License-Identifier: Apache-2.0
# An overlay port of the tree that it lies in: vcpkg install hetsched --overlay-ports=TREE/cmake/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS features
  FEATURES
    io HETSCHED_IO
    views HETSCHED_VIEWS
    eigen HETSCHED_EIGEN
    gloo HETSCHED_GLOO
    mpi HETSCHED_MPI
    cuda HETSCHED_CUDA
    cuda-check HETSCHED_CUDA_CHECK
    hip HETSCHED_HIP
    nccl HETSCHED_NCCL
    compiled HETSCHED_BUILD_COMPILED
)
if(NOT "compiled" IN_LIST FEATURES)
  set(VCPKG_BUILD_TYPE release)  # headers only
endif()
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features}
    -DHETSCHED_INSTALL=ON
    -DHETSCHED_BUILD_TESTS=OFF
    -DHETSCHED_BUILD_EXAMPLES=OFF
    -DHETSCHED_BUILD_BENCH=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/hetsched)
vcpkg_fixup_pkgconfig()

# The licence goes where vcpkg looks for it; nothing else is left of folders that a library of headers does not have.
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/licenses" "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
if(NOT "compiled" IN_LIST FEATURES)
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib")
endif()
file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
