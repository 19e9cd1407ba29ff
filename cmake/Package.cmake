# cmake --install: headers, libraries and package files are the component "development", the command is "runtime".
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
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
if(TARGET galvatron_command)
  install(TARGETS galvatron_command RUNTIME COMPONENT runtime)
  if(TARGET galvatron_gpu)
    install(TARGETS galvatron_gpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
  endif()
endif()
