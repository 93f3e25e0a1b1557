"""Tables in memory that all ranks of a host map: a rank reads the rows of the others itself.

``_shared`` and ``_symmetric`` get such memory, for the CPU and for CUDA. By ``_meetings`` the ranks
wait for each other, and ``_tables`` reads rows and sums gradients.
"""
