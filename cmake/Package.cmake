# cmake --install: headers, libraries and package files are the component "development", the command with its man page
# and completion of shells is "runtime". The target `uninstall` removes both, cpack makes a Debian package of them.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/galvatron)
set(targets planning host tokenizers mpi cuda)
if(GALVATRON_INSTALL_LIBRARIES)
  list(APPEND targets planner trainer gpu_trainer)
endif()
foreach(target IN LISTS targets)
  if(TARGET galvatron_${target})
    install(TARGETS galvatron_${target} EXPORT galvatron_${target} COMPONENT development)
    install(EXPORT galvatron_${target} NAMESPACE galvatron:: FILE galvatron-${target}.cmake DESTINATION ${package_dir}
            COMPONENT development)
  endif()
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/galvatronConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/galvatronConfig.cmake INSTALL_DESTINATION ${package_dir})
if(NOT TARGET galvatron_cuda AND NOT GALVATRON_INSTALL_LIBRARIES)
  set(any_machine ARCH_INDEPENDENT) # headers alone
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/galvatronConfigVersion.cmake COMPATIBILITY SameMinorVersion
                                 ${any_machine})
install(FILES ${PROJECT_BINARY_DIR}/galvatronConfig.cmake ${PROJECT_BINARY_DIR}/galvatronConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake ${PROJECT_SOURCE_DIR}/cmake/FindCuDNN.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake ${PROJECT_SOURCE_DIR}/cmake/FindTokenizers.cmake
        DESTINATION ${package_dir} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT development)
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
                                      -P ${PROJECT_SOURCE_DIR}/cmake/Uninstall.cmake VERBATIM)
endif()
if(TARGET galvatron_command)
  install(TARGETS galvatron_command RUNTIME COMPONENT runtime)
  install(FILES ${galvatron_share}/galvatron.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
  install(FILES ${galvatron_share}/galvatron DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          COMPONENT runtime)
  set(zsh_folder site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(zsh_folder vendor-completions)  # Debian's zsh reads no other folder there
  endif()
  install(FILES ${galvatron_share}/_galvatron DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder} COMPONENT runtime)
  install(FILES ${galvatron_share}/galvatron.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
          COMPONENT runtime)
  if(TARGET galvatron_gpu)
    install(TARGETS galvatron_gpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
  endif()
endif()

# A Debian package of all: `cpack` in a folder that the preset "package" has built.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME galvatron)
  set(CPACK_PACKAGE_CONTACT "galvatron maintainers <root@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "searches hybrid-parallel training plans and runs them")
  set(CPACK_PACKAGE_DESCRIPTION
      "Turns a Transformer, a cluster and a memory budget into the fastest hybrid-parallel
training plan, and runs that plan. This package has the command, the headers and
libraries of C++, the man page and the completion of shells.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  # What programs that use the library are compiled with.
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS
      "g++, cmake, libboost-graph-dev, nlohmann-json3-dev, libexpected-dev, libdnnl-dev, libopenmpi-dev, libpcre2-dev, \
libsentencepiece-dev, libutf8proc-dev")
  include(CPack)
endif()
