# cmake -D PROGRAMS=A;B -D FOLDER=DIR -P gpu_libraries.cmake: copies the libraries that programs need to a folder, but
# those of CUDA and of every system.
file(REMOVE_RECURSE ${FOLDER})  # programs would find what was copied before
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAMS} RESOLVED_DEPENDENCIES_VAR libraries
  UNRESOLVED_DEPENDENCIES_VAR missing PRE_EXCLUDE_REGEXES "^lib(cu|nccl|nv)" "^lib(c|m|dl|rt|pthread)[.]so" "^ld-linux")
if(missing)
  message(FATAL_ERROR "not found: ${missing}")
endif()
file(MAKE_DIRECTORY ${FOLDER})
foreach(library IN LISTS libraries)
  cmake_path(GET library FILENAME name)
  file(REAL_PATH ${library} real)
  file(COPY_FILE ${real} ${FOLDER}/${name})
endforeach()
