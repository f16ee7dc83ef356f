# SPDX-License-Identifier: Apache-2.0
# Component compiled: the definitions of x.ipp in static libraries, so that includers of x.hpp need not compile them. One library of
# all rooms that need nothing else, and one of each room that does. Their sources are made here: one of each room, of each folder in
# it where a room is large and of each planner, so that a build has something to do for every processor.
set(hetsched_large_rooms io planners runtime spmd)

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

# hetsched_add_compiled(NAME INTERFACE_LIBRARY ROOMS...): hetsched::NAME.
function(hetsched_add_compiled name headers)
  hetsched_compiled_sources(sources ${ARGN})
  add_library(hetsched_${name} STATIC ${sources})
  add_library(hetsched::${name} ALIAS hetsched_${name})
  set_target_properties(hetsched_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  if(HETSCHED_MERGE_TESTS)
    # What rooms instantiate alike is compiled once; still something to do for every processor.
    set_target_properties(hetsched_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
  endif()
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
