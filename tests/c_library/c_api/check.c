/* Calls every function of torch_ops.h from C, right and wrong, on the CPU. Linked with the library;
 * run under valgrind by tests/c_library/test_c_programs.py. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <torch_ops.h>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              torch_ops_last_error());                                                \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

enum { B = 3, M = 1000, N = 70000, D = 5 };

static int32_t* make_index(int64_t entries) {
  int32_t* index = malloc(entries * sizeof(*index));
  for (int64_t n = 0; n < entries; ++n) index[n] = (int32_t)(n * 7919 % M);
  return index;
}

static void check_gather(void) {
  double* source = malloc(B * M * D * sizeof(*source));
  double* output = malloc((size_t)B * N * D * sizeof(*output));
  int32_t* index = make_index(B * N);
  for (int64_t i = 0; i < B * M * D; ++i) source[i] = (double)i;
  float milliseconds = -1;
  CHECK(torch_ops_batch_gather(source, index, output, B, M, N, D, TORCH_OPS_FLOAT64,
                               TORCH_OPS_INDEX_INT32, TORCH_OPS_HOST_CPU, NULL,
                               &milliseconds) == TORCH_OPS_SUCCESS);
  CHECK(milliseconds >= 0);
  for (int64_t i = 0; i < (int64_t)B * N * D; ++i) {
    const int64_t b = i / D / N;
    CHECK(output[i] == source[(b * M + index[i / D]) * D + i % D]);
  }
  CHECK(torch_ops_gather(source, index, output, M, N, D, TORCH_OPS_FLOAT64, TORCH_OPS_INDEX_INT32,
                         TORCH_OPS_HOST, NULL, NULL) == TORCH_OPS_SUCCESS);

  double* sums = malloc(B * M * D * sizeof(*sums));
  CHECK(torch_ops_scatter_add(output, index, sums, 1, M, N, D, TORCH_OPS_FLOAT64,
                              TORCH_OPS_INDEX_INT32, TORCH_OPS_HOST_CPU, NULL, NULL, 0,
                              NULL) == TORCH_OPS_SUCCESS);
  CHECK(sums[D] == source[D] * (N / M)); /* each row was picked N / M times */
  int64_t bytes = -1;
  CHECK(torch_ops_scatter_add_workspace(1, M, D, TORCH_OPS_FLOAT16, TORCH_OPS_HOST, &bytes) ==
            TORCH_OPS_SUCCESS &&
        bytes == 0);

  index[12345] = M;
  CHECK(torch_ops_gather(source, index, output, M, N, D, TORCH_OPS_FLOAT64, TORCH_OPS_INDEX_INT32,
                         TORCH_OPS_HOST_CPU, NULL, NULL) == TORCH_OPS_INDEX_OUT_OF_RANGE);
  int64_t position, value, bound;
  CHECK(torch_ops_last_index_error(&position, &value, &bound) == TORCH_OPS_SUCCESS);
  CHECK(position == 12345 && value == M && bound == M);
  CHECK(strstr(torch_ops_last_error(), "index[12345] is 1000") != NULL);
  CHECK(torch_ops_scatter_add(output, index, sums, 1, M, N, D, TORCH_OPS_FLOAT64,
                              TORCH_OPS_INDEX_INT32, TORCH_OPS_HOST_CPU, NULL, NULL, 0,
                              NULL) == TORCH_OPS_INDEX_OUT_OF_RANGE);
  free(sums);
  free(index);
  free(output);
  free(source);
}

static void check_reductions(void) {
  const float values[] = {1, 2, 4, 8};
  const int64_t index[] = {2, 0, 2, -1};
  float result[3];
  int64_t positions[3];
  CHECK(torch_ops_scatter(values, index, result, 1, 3, 4, 1, TORCH_OPS_FLOAT32,
                          TORCH_OPS_INDEX_INT64, TORCH_OPS_REDUCE_SUM, TORCH_OPS_MODE_FILL,
                          TORCH_OPS_DETERMINISTIC, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(result[0] == 2 && result[1] == 0 && result[2] == 13); /* -1 is the last row */
  CHECK(torch_ops_scatter(values, index, result, 1, 3, 3, 1, TORCH_OPS_FLOAT32,
                          TORCH_OPS_INDEX_INT64, TORCH_OPS_REDUCE_SUM, TORCH_OPS_MODE_RAISE,
                          TORCH_OPS_ONTO_RESULT, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(result[0] == 4 && result[1] == 0 && result[2] == 18);
  CHECK(torch_ops_scatter_arg(values, index, positions, 1, 3, 3, 1, TORCH_OPS_FLOAT32,
                              TORCH_OPS_INDEX_INT64, TORCH_OPS_REDUCE_AMAX, TORCH_OPS_MODE_RAISE,
                              TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(positions[0] == 1 && positions[1] == 3 && positions[2] == 2);

  torch_ops_plan* plan = NULL;
  CHECK(torch_ops_plan_create(index, 1, 3, 4, TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST, NULL, &plan) ==
        TORCH_OPS_INDEX_OUT_OF_RANGE);
  CHECK(plan == NULL);
  CHECK(torch_ops_plan_create(index, 1, 3, 3, TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST, NULL, &plan) ==
        0);
  CHECK(torch_ops_plan_scatter(plan, values, result, 1, TORCH_OPS_FLOAT32, TORCH_OPS_REDUCE_MEAN, 0,
                               NULL, NULL) == 0);
  CHECK(result[0] == 2 && result[1] == 0 && result[2] == 2.5f);
  CHECK(torch_ops_plan_gather(plan, values, result, 1, TORCH_OPS_FLOAT32, NULL, NULL) == 0);
  CHECK(result[0] == 4 && result[1] == 1 && result[2] == 4);
  CHECK(torch_ops_plan_destroy(plan) == 0 && torch_ops_plan_destroy(NULL) == 0);
  CHECK(torch_ops_plan_gather(NULL, values, result, 1, TORCH_OPS_FLOAT32, NULL, NULL) ==
        TORCH_OPS_NULL_POINTER);
}

static void check_elements_and_points(void) {
  const double source[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const int32_t index[2][2] = {{2, -3}, {1, 7}}, columns[2] = {1, 0};
  const double fill = -1;
  double output[2][2], sums[2][3] = {{0}}, row[3];
  CHECK(torch_ops_gather_elements(source, index, output, 2, 3, 2, 1, TORCH_OPS_FLOAT64,
                                  TORCH_OPS_INDEX_INT32, TORCH_OPS_MODE_FILL, &fill, TORCH_OPS_HOST,
                                  NULL, NULL) == 0);
  CHECK(output[0][0] == 3 && output[0][1] == 1 && output[1][0] == 5 && output[1][1] == -1);
  CHECK(torch_ops_scatter_elements_add(output, index, sums, 2, 3, 2, 1, TORCH_OPS_FLOAT64,
                                       TORCH_OPS_INDEX_INT32, TORCH_OPS_MODE_CLIP, 0,
                                       TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(sums[0][0] == 1 && sums[0][2] == 3 && sums[1][1] == 5 && sums[1][2] == -1);
  CHECK(torch_ops_gather_rows(source, columns, row, 1, 2, 1, 3, TORCH_OPS_FLOAT64,
                              TORCH_OPS_INDEX_INT32, TORCH_OPS_MODE_WRAP, NULL, TORCH_OPS_HOST,
                              NULL, NULL) == 0);
  CHECK(row[0] == 4 && row[2] == 6);

  const int32_t rows[2] = {1, -2};
  const void* points[] = {rows, columns};
  const int64_t sizes[] = {2, 3};
  int64_t places[2];
  CHECK(torch_ops_gather_points(source, points, sizes, 2, row, 1, 2, 1, TORCH_OPS_FLOAT64,
                                TORCH_OPS_INDEX_INT32, TORCH_OPS_MODE_FROM_END, NULL,
                                TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(row[0] == 5 && row[1] == 1);
  CHECK(torch_ops_put_points(sums, points, sizes, 2, row, 1, 2, 1, TORCH_OPS_FLOAT64,
                             TORCH_OPS_INDEX_INT32, TORCH_OPS_MODE_FROM_END, TORCH_OPS_HOST, NULL,
                             NULL) == 0);
  CHECK(sums[1][1] == 5 && sums[0][0] == 1);
  CHECK(torch_ops_ravel_points(points, sizes, 2, places, 2, TORCH_OPS_INDEX_INT32,
                               TORCH_OPS_MODE_FROM_END, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(places[0] == 4 && places[1] == 0);
  CHECK(torch_ops_ravel_points(points, sizes, 2, places, 2, TORCH_OPS_INDEX_INT32,
                               TORCH_OPS_MODE_RAISE, TORCH_OPS_HOST, NULL,
                               NULL) == TORCH_OPS_INDEX_OUT_OF_RANGE);
  CHECK(strstr(torch_ops_last_error(), "coordinates[0][1] is -2") != NULL);
}

static void check_plain_forms(void) {
  const float source[] = {0.5f, 1.5f, 2.5f, 3.5f};
  const int index[] = {1, 0, 1};
  float res[3];
  CHECK(torch_ops_gather_host(source, index, res, 3, 4) >= 0);
  CHECK(res[0] == 1.5f && res[1] == 0.5f && res[2] == 1.5f);
  CHECK(torch_ops_batch_gather_host(source, index, res, 1, 2, 2) >= 0);
  CHECK(res[0] == 1.5f && res[1] == 2.5f);
  CHECK(torch_ops_gather_host(source, index, res, 3, 1) == -TORCH_OPS_INDEX_OUT_OF_RANGE);
  CHECK(torch_ops_gather_host(NULL, index, res, 3, 4) == -TORCH_OPS_NULL_POINTER);
  CHECK(torch_ops_batch_gather_host(source, index, res, 1, 2, -2) == -TORCH_OPS_NEGATIVE_SIZE);
}

static void check_activations(void) {
  enum { SIZE = 100003 };
  float* x = malloc(SIZE * sizeof(*x));
  float* y = malloc(SIZE * sizeof(*y));
  float* grad = malloc(SIZE * sizeof(*grad));
  for (int i = 0; i < SIZE; ++i) x[i] = (float)(i % 17 - 8);
  CHECK(torch_ops_relu(x, y, SIZE, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(torch_ops_relu_backward(x, y, grad, SIZE, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, NULL, NULL) ==
        0);
  for (int i = 0; i < SIZE; ++i) {
    CHECK(y[i] == (x[i] > 0 ? x[i] : 0));
    CHECK(grad[i] == (x[i] > 0 ? x[i] : 0));
  }
  CHECK(torch_ops_sigmoid(x, y, SIZE, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(torch_ops_sigmoid_backward(x, y, grad, SIZE, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, NULL,
                                   NULL) == 0);
  for (int i = 0; i < SIZE; ++i) {
    CHECK(fabs(y[i] - 1 / (1 + exp(-x[i]))) < 1e-6);
    CHECK(fabs(grad[i] - x[i] * y[i] * (1 - y[i])) < 1e-5);
  }
  CHECK(torch_ops_leaky_relu(x, y, SIZE, 0.5, TORCH_OPS_FLOAT32, TORCH_OPS_HOST, NULL, NULL) == 0);
  CHECK(torch_ops_leaky_relu_backward(x, x, grad, SIZE, 0.5, TORCH_OPS_FLOAT32, TORCH_OPS_HOST,
                                      NULL, NULL) == 0);
  for (int i = 0; i < SIZE; ++i) {
    CHECK(y[i] == (x[i] > 0 ? x[i] : x[i] / 2));
    CHECK(grad[i] == (x[i] > 0 ? x[i] : x[i] / 2));
  }
  CHECK(torch_ops_relu(x, x, SIZE, TORCH_OPS_INT32, TORCH_OPS_HOST, NULL, NULL) ==
        TORCH_OPS_UNSUPPORTED_DTYPE);
  free(grad);
  free(y);
  free(x);
}

static void check_the_rest(void) {
  CHECK(torch_ops_api_version() == TORCH_OPS_API_VERSION);
  CHECK(strchr(torch_ops_version(), '.') != NULL);
  CHECK(strstr(torch_ops_build_config(), "cuda=") != NULL);
  CHECK(torch_ops_device_count() >= 0);
  CHECK(torch_ops_set_num_threads(3) == 0 && torch_ops_get_num_threads() == 3);
  CHECK(torch_ops_set_device_memory_limit(-1) == TORCH_OPS_NEGATIVE_SIZE);
  CHECK(torch_ops_set_device_memory_limit(0) == 0);
  CHECK(torch_ops_check_errors(NULL) == 0);
  CHECK(strcmp(torch_ops_status_string(0), "success") == 0);
  CHECK(strcmp(torch_ops_status_string(-7), "an unknown status") == 0);
  void* memory = NULL;
  CHECK(torch_ops_host_alloc(1000, &memory) == 0 && memory != NULL);
  memset(memory, 1, 1000);
  CHECK(torch_ops_host_free(memory) == 0 && torch_ops_host_free(NULL) == 0);
  CHECK(torch_ops_host_alloc(1000, NULL) == TORCH_OPS_NULL_POINTER);
  CHECK(torch_ops_hello(3, TORCH_OPS_HOST_CPU) == 0);
  CHECK(torch_ops_hello(-3, TORCH_OPS_HOST_CPU) == TORCH_OPS_INVALID_ARGUMENT);
}

int main(void) {
  CHECK(strcmp(torch_ops_last_error(), "") == 0);
  check_the_rest();
  check_gather();
  check_reductions();
  check_elements_and_points();
  check_plain_forms();
  check_activations();
  puts("all checks passed");
  return 0;
}
