# SPDX-License-Identifier: Apache-2.0
# One export set per component, so that a component's dependencies are looked for only when it is asked for.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hetsched")

install(TARGETS hetsched EXPORT hetsched-targets FILE_SET HEADERS)
install(EXPORT hetsched-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
if(HETSCHED_VIEWS)
  install(TARGETS hetsched_views EXPORT hetsched-views-targets FILE_SET HEADERS)
  install(EXPORT hetsched-views-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()
if(HETSCHED_IO)
  install(TARGETS hetsched_io EXPORT hetsched-io-targets FILE_SET HEADERS)
  install(EXPORT hetsched-io-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()
if(HETSCHED_GLOO)
  install(TARGETS hetsched_gloo EXPORT hetsched-gloo-targets FILE_SET HEADERS)
  install(EXPORT hetsched-gloo-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()
if(HETSCHED_CUDA)
  install(TARGETS hetsched_cuda EXPORT hetsched-cuda-targets FILE_SET HEADERS)
  install(EXPORT hetsched-cuda-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()
if(HETSCHED_NCCL)
  install(TARGETS hetsched_nccl EXPORT hetsched-nccl-targets FILE_SET HEADERS)
  install(EXPORT hetsched-nccl-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()
if(HETSCHED_METIS)
  install(TARGETS hetsched_metis EXPORT hetsched-metis-targets FILE_SET HEADERS)
  install(EXPORT hetsched-metis-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")
endif()

configure_package_config_file(cmake/hetsched-config.cmake.in "${PROJECT_BINARY_DIR}/hetsched-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hetsched-config-version.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/hetsched-config.cmake" "${PROJECT_BINARY_DIR}/hetsched-config-version.cmake"
  DESTINATION "${package_dir}")
