// Stands in for CUDA's header of this name, which checks the compiler that nvcc calls.
#pragma once
