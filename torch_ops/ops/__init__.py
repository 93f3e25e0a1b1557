"""One module per op: its Function, function, module and batching rules."""
