// The differences between the versions of torch that this library is built for, 2.11 to 2.15. No
// file asks which version it is.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <utility>

namespace torch_ops::compat {

// Pointers to nodes of the autograd graph, which count their own references from 2.13 on.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
template <class Node>
using NodePtr = c10::intrusive_ptr<Node>;

template <class Node, class... Args>
NodePtr<Node> make_node(Args&&... args) {
  return c10::make_intrusive<Node>(std::forward<Args>(args)...);
}
#else
template <class Node>
using NodePtr = std::shared_ptr<Node>;

template <class Node, class... Args>
NodePtr<Node> make_node(Args&&... args) {
  return NodePtr<Node>(new Node(std::forward<Args>(args)...), torch::autograd::deleteNode);
}
#endif

// The base of our nodes. A node that saves its own output refers to itself, weakly. From 2.13 on
// its memory then outlives its last use, so its contents must be released before.
class NodeBase : public torch::autograd::TraceableFunction {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
 public:
  void release_resources() override {
    TraceableFunction::release_resources();
    drop_fields();
  }
#endif

 protected:
  // Releases everything that the node has saved, when it is no longer used.
  virtual void drop_fields() = 0;
};

}  // namespace torch_ops::compat
