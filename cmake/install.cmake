# SPDX-License-Identifier: Apache-2.0
# The package as CMake, pkg-config and readers of the Common Package Specification find it. Every component has files of its own,
# so that what it depends on is looked for only when it is asked for.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hetsched")
set(pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(cps_dir "${CMAKE_INSTALL_DATADIR}/cps/hetsched")
# By ways from one to the other, so that the installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
file(RELATIVE_PATH prefix_to_include "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
file(RELATIVE_PATH prefix_to_lib "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")

# json_members(RESULT TEXTS...): the texts as strings with commas between them.
function(json_members result)
  list(TRANSFORM ARGN REPLACE "^(.+)$" "\"\\1\"")
  list(JOIN ARGN ", " text)
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# install_component(NAME ...): the component NAME, if it was configured; the name of the core is empty.
#   ABOUT         one line
#   PC_REQUIRES   what its .pc file requires
#   CPS_REQUIRES  components of other packages, PACKAGE:COMPONENT, and of this one, :COMPONENT
#   INCLUDES      folders with headers of what comes with neither
#   LIBRARIES     such libraries, as names or whole paths
# A component that is a library itself says so to all readers, and that its definitions are not to be compiled again.
function(install_component name)
  cmake_parse_arguments(PARSE_ARGV 1 component "" "ABOUT" "PC_REQUIRES;CPS_REQUIRES;INCLUDES;LIBRARIES")
  set(suffix)
  set(stem hetsched)
  if(name)
    set(suffix "-${name}")
    set(stem "hetsched_${name}")
  endif()
  if(NOT TARGET ${stem})
    return()
  endif()
  get_target_property(type ${stem} TYPE)
  set(archive FALSE)
  if(type STREQUAL "STATIC_LIBRARY")
    set(archive TRUE)
    install(TARGETS ${stem} EXPORT hetsched${suffix}-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  else()
    get_target_property(sets ${stem} INTERFACE_HEADER_SETS)
    list(TRANSFORM sets PREPEND "FILE_SET;")
    install(TARGETS ${stem} EXPORT hetsched${suffix}-targets ${sets})
  endif()
  install(EXPORT hetsched${suffix}-targets NAMESPACE hetsched:: DESTINATION "${package_dir}")

  # Where the compiler looks by itself, it must not be told to: -isystem /usr/include hides <stdlib.h> from <cstdlib>.
  list(REMOVE_ITEM component_INCLUDES /usr/include ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})

  # pkg-config
  set(cflags "-I\${includedir}")
  foreach(folder IN LISTS component_INCLUDES)
    string(APPEND cflags " -isystem ${folder}")
  endforeach()
  set(libs)
  if(archive)
    string(APPEND cflags " -DHETSCHED_COMPILED")
    list(APPEND libs "-L\${prefix}/${prefix_to_lib}" "-l${stem}")
  endif()
  foreach(library IN LISTS component_LIBRARIES)
    if(IS_ABSOLUTE "${library}")
      list(APPEND libs "${library}")
    else()
      list(APPEND libs "-l${library}")
    endif()
  endforeach()
  list(JOIN libs " " libs)
  list(JOIN component_PC_REQUIRES ", " requires)
  configure_file(cmake/hetsched.pc.in "${PROJECT_BINARY_DIR}/hetsched${suffix}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/hetsched${suffix}.pc" DESTINATION "${pc_dir}")

  # The Common Package Specification: the core is the package, components are appendices.
  set(packages ${component_CPS_REQUIRES})
  list(FILTER packages EXCLUDE REGEX "^:")
  set(package_requires)
  foreach(package IN LISTS packages)
    string(REGEX REPLACE "^(.*):(.*)$" "\"\\1\": { \"components\": [\"\\2\"] }" package "${package}")
    list(APPEND package_requires "${package}")
  endforeach()
  list(JOIN package_requires ", " package_requires)
  json_members(component_requires ${component_CPS_REQUIRES})
  json_members(includes "@prefix@/${prefix_to_include}" ${component_INCLUDES})
  json_members(link_libraries ${component_LIBRARIES})
  set(component "${name}")
  set(version)
  if(NOT name)
    set(component hetsched)
    set(version "\"version\": \"${PROJECT_VERSION}\",
  \"compat_version\": \"${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}.0\",\n  ")
  endif()
  set(prefix "@prefix@")
  set(kind "\"type\": \"interface\"")
  if(archive)
    set(kind "\"type\": \"archive\",
      \"location\": \"@prefix@/${prefix_to_lib}/${CMAKE_STATIC_LIBRARY_PREFIX}${stem}${CMAKE_STATIC_LIBRARY_SUFFIX}\",
      \"link_languages\": [\"cpp\"],
      \"definitions\": { \"*\": { \"HETSCHED_COMPILED\": null } }")
  endif()
  configure_file(cmake/hetsched.cps.in "${PROJECT_BINARY_DIR}/hetsched${suffix}.cps" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/hetsched${suffix}.cps" DESTINATION "${cps_dir}")
endfunction()

install_component("" ABOUT "${PROJECT_DESCRIPTION}")
install_component(views ABOUT "Plans, schedules and timelines as ranges, and range adaptors that C++20 lacks; range-v3 has no .pc file and must be where the compiler looks"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched range-v3:range-v3)
install_component(eigen ABOUT "Matrices and tensors of Eigen in pipelines, and layers on them"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}" eigen3
  CPS_REQUIRES :hetsched Eigen3:Eigen)
install_component(io ABOUT "JSON files, reports and checkpoints"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}" nlohmann_json
  CPS_REQUIRES :hetsched nlohmann_json:nlohmann_json)
install_component(gloo ABOUT "Ranks as processes on several hosts, by Gloo"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  LIBRARIES gloo pthread)
install_component(mpi ABOUT "Ranks as processes that mpirun or srun starts, by MPI"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  INCLUDES ${MPI_CXX_INCLUDE_DIRS}
  LIBRARIES ${MPI_CXX_LIBRARIES} pthread)
install_component(compiled ABOUT "Definitions of what needs no template, compiled"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched)
foreach(room IN ITEMS io gloo mpi)
  install_component(compiled_${room} ABOUT "Definitions of component ${room}, compiled"
    PC_REQUIRES "hetsched-compiled = ${PROJECT_VERSION}" "hetsched-${room} = ${PROJECT_VERSION}"
    CPS_REQUIRES :${room} :compiled)
endforeach()
install_component(cuda ABOUT "Ranks on GPUs of one process"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  INCLUDES ${CUDAToolkit_INCLUDE_DIRS}
  LIBRARIES "${CUDA_cudart_static_LIBRARY}" dl rt pthread)
install_component(cuda_check ABOUT "A strict stand-in for CUDA, for tests without a GPU"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  LIBRARIES pthread)
install_component(hip ABOUT "Ranks on AMD's GPUs of one process"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  INCLUDES "${HETSCHED_HIP_INCLUDE}"
  LIBRARIES "${HETSCHED_HIP_LIBRARY}" pthread)
install_component(nccl ABOUT "Ranks on GPUs by NCCL"
  PC_REQUIRES "hetsched-cuda = ${PROJECT_VERSION}"
  CPS_REQUIRES :cuda
  INCLUDES "${HETSCHED_NCCL_INCLUDE}"
  LIBRARIES "${HETSCHED_NCCL_LIBRARY}")
install_component(torch ABOUT "Tensors, modules and optimizers of LibTorch in pipelines"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  INCLUDES ${HETSCHED_TORCH_INCLUDES}
  LIBRARIES ${HETSCHED_TORCH_LIBRARIES} pthread)
install_component(metis ABOUT "A partitioner for the planner hexiscale, by METIS"
  PC_REQUIRES "hetsched = ${PROJECT_VERSION}"
  CPS_REQUIRES :hetsched
  LIBRARIES metis)

configure_package_config_file(cmake/hetsched-config.cmake.in "${PROJECT_BINARY_DIR}/hetsched-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
set(independent ARCH_INDEPENDENT)
if(TARGET hetsched_compiled)
  set(independent)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hetsched-config-version.cmake"
  COMPATIBILITY SameMinorVersion ${independent})
install(FILES "${PROJECT_BINARY_DIR}/hetsched-config.cmake" "${PROJECT_BINARY_DIR}/hetsched-config-version.cmake"
  DESTINATION "${package_dir}")
if(TARGET hetsched_torch)
  install(FILES cmake/hetsched-torch.cmake DESTINATION "${package_dir}")
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/hetsched")
