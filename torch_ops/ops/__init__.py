"""One module an op: its Function, function, module and batching rules."""
