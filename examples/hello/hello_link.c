/* hello from C, linked with the library. In this folder:
 *
 *   cc hello_link.c -o hello_link $(python paths.py)
 *   ./hello_link
 */
#include <stdio.h>
#include <torch_ops.h>

int main(void) {
  const torch_ops_status status = torch_ops_hello(8, TORCH_OPS_HOST);
  if (status != TORCH_OPS_SUCCESS) fprintf(stderr, "%s\n", torch_ops_last_error());
  return status;
}
