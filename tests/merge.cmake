# SPDX-License-Identifier: Apache-2.0
# merge_tests(RESULT NAME SOURCES...): puts test files together, up to twenty in one translation unit (ten with g++ and sanitizers,
# which need gigabytes), which halves the time of compiling them all; RESULT gets what is to be compiled. Every file lies in a
# namespace of its own, behind the includes of all of them, whose guards make those inside harmless. A file with the words "Compiled by
# itself" stays out.
function(merge_tests result name)
  set(merged)
  set(alone)
  foreach(source IN LISTS ARGN)
    file(READ "${source}" text)
    if(text MATCHES "Compiled by itself")
      list(APPEND alone "${source}")
    else()
      list(APPEND merged "${source}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  endforeach()
  list(LENGTH merged count)
  set(most 20)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "sanitize")
    set(most 10)
  endif()
  math(EXPR units "(${count} + ${most} - 1) / ${most}")
  set(unit 0)
  while(unit LESS units)
    set(includes)
    set(bodies "")
    set(at ${unit})
    while(at LESS count)
      list(GET merged ${at} source)
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(GET source PARENT_PATH folder)
      file(STRINGS "${source}" lines REGEX "^#include ")
      list(TRANSFORM lines REPLACE "^#include \"" "#include \"${folder}/")
      list(APPEND includes ${lines})
      string(APPEND bodies "namespace merged_${at} {\n#include \"${source}\"\n}\n")
      math(EXPR at "${at} + ${units}")
    endwhile()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_${unit}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${includes}\n${bodies}" @ONLY)
    list(APPEND alone "${file}")
    math(EXPR unit "${unit} + 1")
  endwhile()
  set(${result} ${alone} PARENT_SCOPE)
endfunction()

# merge_programs(RESULT NAME TARGETS...): builds programs of one source file each as few, NAME_..., that ask under which name they were
# called: what their headers instantiate is compiled once. What stands on hetsched_train is apart from what does not: with CUDA's
# libraries a program takes fifty times as long to start. Every main must return a value. Links stand where the programs would; those
# are built only if asked for, in the folder "apart". RESULT gets the targets.
function(merge_programs result name)
  set(units)
  set(at 0)
  foreach(program IN LISTS ARGN)
    get_target_property(source ${program} SOURCES)
    get_target_property(folder ${program} SOURCE_DIR)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE)
    cmake_path(GET source PARENT_PATH folder)
    get_target_property(linked ${program} LINK_LIBRARIES)
    set(unit commands)
    if("hetsched_train" IN_LIST linked)
      set(unit train)
    endif()
    list(APPEND units ${unit})
    list(APPEND ${unit}_libraries ${linked})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    file(STRINGS "${source}" lines REGEX "^#include ")
    list(TRANSFORM lines REPLACE "^#include \"" "#include \"${folder}/")
    list(APPEND ${unit}_includes ${lines})
    string(APPEND ${unit}_bodies "namespace program_${at} {\n#define main program_main\n#include \"${source}\"\n#undef main\n}\n")
    get_target_property(called ${program} OUTPUT_NAME)
    if(NOT called)
      set(called ${program})
    endif()
    list(APPEND ${unit}_names ${called})
    string(APPEND ${unit}_calls "  if (name == \"${called}\") return run(program_${at}::program_main, argc, argv);\n")
    get_target_property(folder ${program} RUNTIME_OUTPUT_DIRECTORY)
    if(NOT folder)
      get_target_property(folder ${program} BINARY_DIR)
    endif()
    list(APPEND ${unit}_folders "${folder}")
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/apart")
    math(EXPR at "${at} + 1")
  endforeach()
  list(REMOVE_DUPLICATES units)
  set(targets)
  foreach(unit IN LISTS units)
    list(REMOVE_DUPLICATES ${unit}_includes)
    list(REMOVE_DUPLICATES ${unit}_libraries)
    list(JOIN ${unit}_includes "\n" includes)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_${unit}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${includes}
#include <cstdio>
#include <string_view>
static int run(int (*program)(int, char**), int argc, char** argv) { return program(argc, argv); }
[[maybe_unused]] static int run(int (*program)(), int, char**) { return program(); }
${${unit}_bodies}
int main(int argc, char** argv) {
  std::string_view name = argv[0];
  name.remove_prefix(name.rfind('/') + 1);
${${unit}_calls}  std::fprintf(stderr, \"%s: there is no such program here\\n\", argv[0]);
  return 127;
}
" @ONLY)
    add_executable(${name}_${unit} "${file}")
    target_link_libraries(${name}_${unit} PRIVATE ${${unit}_libraries})
    foreach(program folder IN ZIP_LISTS ${unit}_names ${unit}_folders)
      add_custom_command(TARGET ${name}_${unit} POST_BUILD COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}"
        COMMAND "${CMAKE_COMMAND}" -E create_symlink "$<TARGET_FILE:${name}_${unit}>" "${folder}/${program}")
    endforeach()
    list(APPEND targets ${name}_${unit})
  endforeach()
  set(${result} ${targets} PARENT_SCOPE)
endfunction()
