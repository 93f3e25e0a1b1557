/* hello from C, without linking: the library is named when the program runs. In this folder:
 *
 *   cc hello_dlopen.c -o hello_dlopen -ldl
 *   ./hello_dlopen $(python -c "import torch_ops_host; print(torch_ops_host.library_path())")
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef int32_t (*hello_function)(int32_t threads, int32_t memory);
typedef const char* (*text_function)(void);

int main(int count, char** arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: %s libtorch_ops_c.so\n", arguments[0]);
    return 1;
  }
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  hello_function hello;
  text_function last_error;
  /* As POSIX has it: C knows no conversion of data pointers to function pointers. */
  *(void**)&hello = dlsym(library, "torch_ops_hello");
  *(void**)&last_error = dlsym(library, "torch_ops_last_error");
  if (hello == NULL || last_error == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const int32_t host = 0; /* TORCH_OPS_HOST */
  const int32_t status = hello(8, host);
  if (status != 0) fprintf(stderr, "%s\n", last_error());
  return status;
}
