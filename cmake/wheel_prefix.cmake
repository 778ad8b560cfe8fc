# SPDX-License-Identifier: Apache-2.0
# For a ROS 2 installed from wheels: pass this file to CMake as -DCMAKE_PROJECT_INCLUDE.
#
# The *__rosidl_generator_py targets export the include directories of Python and NumPy on the machine that built them.
# CMake rejects imported directories that do not exist on this machine, and exported ones inside the source folder (.venv).
# At the end of the configure step, the imported ones are cleared and the package's own are limited to this build.

function(_kvstream_keep_include_directories_local)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    if(target MATCHES "__rosidl_generator_py$")
      set_property(TARGET ${target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "")
    endif()
  endforeach()
  set(own ${PROJECT_NAME}__rosidl_generator_py)
  if(TARGET ${own})
    get_property(directories TARGET ${own} PROPERTY INTERFACE_INCLUDE_DIRECTORIES)
    set_property(TARGET ${own} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "$<BUILD_INTERFACE:${directories}>")
  endif()
endfunction()

cmake_language(DEFER CALL _kvstream_keep_include_directories_local)
