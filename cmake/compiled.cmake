# SPDX-License-Identifier: Apache-2.0
# Component compiled: the definitions of x.ipp in static libraries, so that includers of x.hpp need not compile them. One library of
# all rooms that need nothing else, and one of each room that does. Their sources are made here: one of each room, of each folder in
# it where a room is large and of each planner, so that a build has something to do for every processor.
set(hetsched_large_rooms io planners runtime spmd)

set(HETSCHED_SEARCH_FLAGS "" CACHE STRING "Further flags for what searches, prices and simulates, behind those of the build: -O1 where all else is at -O0")

# hetsched_compiled_sources(RESULT ROOMS...): makes the sources of the rooms, unless they are as they should be.
function(hetsched_compiled_sources result)
  set(sources)
  foreach(room IN LISTS ARGN)
    file(GLOB_RECURSE definitions RELATIVE "${hetsched_include}" CONFIGURE_DEPENDS "${hetsched_include}/hetsched/${room}/*.ipp")
    list(SORT definitions)
    set(units)
    foreach(definition IN LISTS definitions)
      set(unit "${room}")
      if(room IN_LIST hetsched_large_rooms AND definition MATCHES "^hetsched/${room}/([^/]+)/")
        string(APPEND unit "_${CMAKE_MATCH_1}")
      elseif(room STREQUAL "planners" AND definition MATCHES "/([^/]+)\\.ipp$")
        string(APPEND unit "_${CMAKE_MATCH_1}")
      endif()
      list(APPEND units "${unit}")
      string(APPEND text_of_${unit} "#include <${definition}>\n")
    endforeach()
    list(REMOVE_DUPLICATES units)
    foreach(unit IN LISTS units)
      set(text "${text_of_${unit}}")
      file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/compiled/${unit}.cpp" CONTENT "@text@" @ONLY)
      list(APPEND sources "${PROJECT_BINARY_DIR}/compiled/${unit}.cpp")
    endforeach()
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

# What nobody needs who plans, predicts and simulates: such commands are built without it.
set(hetsched_not_for_planning "/(runtime|spmd|io_checkpoint|io_export|io_inventory|gloo|mpi)[a-z_]*\\.cpp$")

# hetsched_add_compiled(NAME INTERFACE_LIBRARY ROOMS...): hetsched::NAME. Its objects are of two libraries, hetsched_NAME_planning
# and hetsched_NAME_other, if they have any.
function(hetsched_add_compiled name headers)
  hetsched_compiled_sources(other ${ARGN})
  set(planning ${other})
  list(FILTER planning EXCLUDE REGEX "${hetsched_not_for_planning}")
  list(FILTER other INCLUDE REGEX "${hetsched_not_for_planning}")
  set(objects)
  foreach(part IN ITEMS planning other)
    if(NOT ${part})
      continue()
    endif()
    set(target hetsched_${name}_${part})
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${${part}})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    if(HETSCHED_MERGE_TESTS)
      # What rooms instantiate alike is compiled once; still something to do for every processor.
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
    endif()
    if(target STREQUAL "hetsched_compiled_planning")
      separate_arguments(flags NATIVE_COMMAND "${HETSCHED_SEARCH_FLAGS}")
      target_compile_options(${target} PRIVATE ${flags})
    endif()
    target_compile_definitions(${target} PUBLIC HETSCHED_COMPILED)
    target_link_libraries(${target} PUBLIC ${headers})
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  add_library(hetsched_${name} STATIC ${objects})
  add_library(hetsched::${name} ALIAS hetsched_${name})
  set_target_properties(hetsched_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_compile_definitions(hetsched_${name} PUBLIC HETSCHED_COMPILED)
  target_link_libraries(hetsched_${name} PUBLIC ${headers})
endfunction()

file(GLOB rooms RELATIVE "${hetsched_include}/hetsched" CONFIGURE_DEPENDS "${hetsched_include}/hetsched/*")
list(FILTER rooms EXCLUDE REGEX "\\.|^(io|views|gloo|mpi|cuda|cuda_check|hip|torch)$")
hetsched_add_compiled(compiled hetsched ${rooms})
foreach(room IN ITEMS io gloo mpi)
  if(TARGET hetsched_${room})
    hetsched_add_compiled(compiled_${room} hetsched_${room} ${room})
    target_link_libraries(hetsched_compiled_${room} PUBLIC hetsched_compiled)
    # Whoever links hetsched::compiled and the component finds the definitions of both. Of an installed package, its file for CMake
    # does the same for the components that are asked for.
    target_link_libraries(hetsched_compiled INTERFACE $<BUILD_INTERFACE:hetsched_compiled_${room}>)
  endif()
endforeach()

# What commands need that plan, for commands here: of hetsched::compiled and hetsched::compiled_io.
if(TARGET hetsched_compiled_io)
  add_library(hetsched_planning STATIC EXCLUDE_FROM_ALL
    $<TARGET_OBJECTS:hetsched_compiled_planning> $<TARGET_OBJECTS:hetsched_compiled_io_planning>)
  set_target_properties(hetsched_planning PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_definitions(hetsched_planning PUBLIC HETSCHED_COMPILED)
  target_link_libraries(hetsched_planning PUBLIC hetsched_io)
endif()
