# How our own binaries are compiled and linked. Only targets of this project link galvatron_build_flags; none is exported.
add_library(galvatron_build_flags INTERFACE)
target_compile_options(galvatron_build_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow
                                                       $<$<BOOL:${GALVATRON_NATIVE}>:-march=native>)
target_compile_definitions(galvatron_build_flags INTERFACE $<$<BOOL:${GALVATRON_NATIVE}>:GALVATRON_NATIVE>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects garbage from 2 GB on (these are kB), and not from 256 MB: 5 % of its time.
  target_compile_options(galvatron_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
# What computes: the passes of GCC's -O3 that kernels take, without those that copy most code, and two thirds of its time.
# Steps are as fast, searches 3 % slower.
set(galvatron_computing_flags $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-O2;-fvect-cost-model=dynamic;-funswitch-loops>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(galvatron_build_flags INTERFACE -Wno-restrict) # false alarms on std::string in g++ 12
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(galvatron_build_flags INTERFACE -Wno-maybe-uninitialized) # on values that are set, since g++ 13
endif()

# With the base folder, one checkout finds what another compiled.
find_program(CCACHE_PROGRAM ccache)
foreach(language IN ITEMS CXX CUDA)
  if(CCACHE_PROGRAM AND NOT CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE_PROGRAM})
  endif()
endforeach()

# galvatron_unite(RESULT PROGRAM MOST SOURCE...): sources that include these, up to MOST each, or these themselves
# without GALVATRON_UNITY_BUILD. CMake's own UNITY_BUILD includes them by absolute paths, which no other checkout has.
# The more each has, the less is compiled again, and the more memory the compiler takes: 4 GiB at most today.
function(galvatron_unite result program most)
  if(NOT GALVATRON_UNITY_BUILD)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(units)
  set(sources ${ARGN})
  while(sources)
    list(SUBLIST sources 0 ${most} some)
    list(REMOVE_ITEM sources ${some})
    set(content)
    foreach(source IN LISTS some)
      cmake_path(ABSOLUTE_PATH source)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
      string(APPEND content "#include \"${source}\"\n")
    endforeach()
    list(LENGTH units number)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${program}_${number}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${content}")
    list(APPEND units ${unit})
  endwhile()
  set(${result} ${units} PARENT_SCOPE)
endfunction()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  target_link_options(galvatron_build_flags INTERFACE -fuse-ld=mold)
endif()
