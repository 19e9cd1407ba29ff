# How our own binaries are compiled and linked. Only targets of this project link galvatron_build_flags; none is exported.
add_library(galvatron_build_flags INTERFACE)
target_compile_options(galvatron_build_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow
                                                       $<$<BOOL:${GALVATRON_NATIVE}>:-march=native>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(galvatron_build_flags INTERFACE -Wno-restrict) # false alarms on std::string in g++ 12
endif()

find_program(CCACHE_PROGRAM ccache)
foreach(language IN ITEMS CXX CUDA)
  if(CCACHE_PROGRAM AND NOT CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
endforeach()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  target_link_options(galvatron_build_flags INTERFACE -fuse-ld=mold)
endif()
