# Finds what tokenizers take: PCRE2, sentencepiece and utf8proc. Target Tokenizers::Tokenizers.
foreach(part IN ITEMS "PCRE2;pcre2.h;pcre2-8" "SENTENCEPIECE;sentencepiece_processor.h;sentencepiece"
                      "UTF8PROC;utf8proc.h;utf8proc")
  list(GET part 0 name)
  list(GET part 1 header)
  list(GET part 2 library)
  find_path(${name}_INCLUDE_DIR ${header})
  find_library(${name}_LIBRARY ${library})
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Tokenizers REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR SENTENCEPIECE_LIBRARY
                                  SENTENCEPIECE_INCLUDE_DIR UTF8PROC_LIBRARY UTF8PROC_INCLUDE_DIR)
if(Tokenizers_FOUND AND NOT TARGET Tokenizers::Tokenizers)
  add_library(Tokenizers::Tokenizers INTERFACE IMPORTED)
  target_include_directories(Tokenizers::Tokenizers INTERFACE ${PCRE2_INCLUDE_DIR} ${SENTENCEPIECE_INCLUDE_DIR}
                                                              ${UTF8PROC_INCLUDE_DIR})
  target_link_libraries(Tokenizers::Tokenizers INTERFACE ${PCRE2_LIBRARY} ${SENTENCEPIECE_LIBRARY} ${UTF8PROC_LIBRARY})
endif()
