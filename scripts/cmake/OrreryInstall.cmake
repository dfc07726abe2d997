# What `cmake --install` adds to the programs and their data.
#
# Completions and the manual page are printed by the program itself, so they always show its options.
#
# ORRERY_INSTALL_LIBTORCH: ON copies every library that orrery-executor loads from outside the system's folders to
# lib/orrery, where it looks after the folder it was built with, so that other users can run it. AUTO: where LibTorch lies in a home folder, which other
# users mostly cannot read.
set(ORRERY_INSTALL_LIBTORCH AUTO CACHE STRING "Install LibTorch beside the executor: AUTO (when it lies in a home folder), ON, OFF")

foreach(text IN ITEMS
    bash:share/bash-completion/completions:orrery
    zsh:share/zsh/site-functions:_orrery
    fish:share/fish/vendor_completions.d:orrery.fish
    man:share/man/man1:orrery.1)
  string(REPLACE ":" ";" text ${text})
  list(GET text 0 kind)
  list(GET text 1 folder)
  list(GET text 2 name)
  install(CODE "
    execute_process(COMMAND \"$<TARGET_FILE:orrery_cli>\" completions ${kind}
                    OUTPUT_FILE \"${PROJECT_BINARY_DIR}/shell/${name}\" COMMAND_ERROR_IS_FATAL ANY)
    file(INSTALL \"${PROJECT_BINARY_DIR}/shell/${name}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${folder}\")")
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/shell)

set(install_torch ${ORRERY_INSTALL_LIBTORCH})
if(install_torch STREQUAL "AUTO")
  set(install_torch OFF)
  if(ORRERY_EXECUTOR AND ORRERY_TORCH_ROOT MATCHES "^(/root|/home|$ENV{HOME})/")
    set(install_torch ON)
  endif()
endif()
if(ORRERY_EXECUTOR AND install_torch)
  # Libraries of NVIDIA's wheels open their neighbours by name, which the loader's list does not show: whole folders of those.
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"$<TARGET_FILE:orrery_executor_cli>\"
         RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR lost
         PRE_EXCLUDE_REGEXES \"^libcuda\\\\.so\" POST_EXCLUDE_REGEXES \"^/(usr/)?lib(64)?/\")
    if(lost)
      message(WARNING \"orrery-executor needs libraries that were not found: \${lost}\")
    endif()
    foreach(library IN LISTS found)
      if(library MATCHES \"/nvidia/[^/]+/lib/\")
        get_filename_component(folder \"\${library}\" DIRECTORY)
        file(GLOB neighbours \"\${folder}/*.so*\")
        list(APPEND found \${neighbours})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
    foreach(library IN LISTS found)
      file(INSTALL \"\${library}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/orrery\" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
    endforeach()" COMPONENT libtorch)
endif()
