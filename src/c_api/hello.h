// What a thread of hello prints: its number, and how many there are.
#pragma once

#define TORCH_OPS_HELLO "Hello from thread %d of %d\n"
