#include <torch_ops.h>

#include <cstdio>
#include <vector>

int main() {
  const std::vector<float> source{1, 2, 3};
  const std::vector<int64_t> index{2, 0};
  std::vector<float> output(2);
  const torch_ops_status status =
      torch_ops_gather(source.data(), index.data(), output.data(), 3, 2, 1, TORCH_OPS_FLOAT32,
                       TORCH_OPS_INDEX_INT64, TORCH_OPS_HOST, nullptr, nullptr);
  std::printf("%s: %g %g\n", torch_ops_status_string(status), output[0], output[1]);
  return status;
}
