/* A program that opens the library, gathers with all its threads and closes it, again and again. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int32_t (*gather_function)(const void* source, const void* index, void* output,
                                   int64_t axis_size, int64_t entries, int64_t inner, int32_t dtype,
                                   int32_t index_type, int32_t memory, void* stream,
                                   float* milliseconds);

int main(int count, char** arguments) {
  const int64_t n = 1 << 20;
  const int32_t float32 = 2, int64 = 1, host_cpu = 2;
  float* source = malloc(n * sizeof(float));
  float* output = malloc(n * sizeof(float));
  int64_t* index = malloc(n * sizeof(int64_t));
  if (count != 2 || source == NULL || output == NULL || index == NULL) return 1;
  for (int64_t i = 0; i < n; ++i) {
    source[i] = (float)i;
    index[i] = n - 1 - i;
  }
  int times = 0;
  for (; times < 100; ++times) {
    void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return 2;
    gather_function gather;
    *(void**)&gather = dlsym(library, "torch_ops_gather");
    if (gather == NULL) return 3;
    if (gather(source, index, output, n, n, 1, float32, int64, host_cpu, NULL, NULL) != 0) return 4;
    for (int64_t i = 0; i < n; ++i) {
      if (output[i] != source[n - 1 - i]) return 5;
    }
    dlclose(library);
  }
  printf("opened and closed %d times\n", times);
  free(source);
  free(output);
  free(index);
  return 0;
}
