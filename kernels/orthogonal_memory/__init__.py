"""LAVO's memory: R slots along an orthogonal basis, each as long as the mean of the tokens' component along it.

    m = mean_j B x_j,   y_i = sum_r a_ir m_r b_r,   a_i = softmax_r(scale m_r q_i·b_r)

`orthogonal_memory` is that alone; `lavo` is the mean of it and of a sliding window.
"""

from kernels.orthogonal_memory.lavo import lavo
from kernels.orthogonal_memory.memory import orthogonal_memory
from kernels.orthogonal_memory.state import MemoryState, compress, empty_state, memory_step, read_memory

__all__ = ["MemoryState", "compress", "empty_state", "lavo", "memory_step", "orthogonal_memory", "read_memory"]
