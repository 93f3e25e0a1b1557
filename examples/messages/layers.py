"""Layers of graph networks, each message one line of text.

Each layer sends messages along the edges ``src[e] -> dst[e]`` of a graph, given as two indices or,
made once for a graph that stays the same, as ``plan = index_plan(src=(src, N), dst=(dst, N))``.
Nothing of the size [edges, features] is made but what a network computes for each edge.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_ops.jit import ElementwiseKernel, IndexedKernel


def to_nodes(graph: dict[str, Any], x: Tensor) -> dict[str, Any]:
    """The graph with its number of nodes, which a plan knows by itself."""
    return graph if "plan" in graph else {**graph, "sizes": {"dst": len(x)}}


# ---- SchNet: continuous-filter convolution ----

FILTERED = IndexedKernel(
    "T x[src], T filter, T smooth", "T out[dst]", "out = x * filter * smooth", "filtered"
)

SOFTPLUS = ElementwiseKernel(
    "T x", "T y", "y = x > 20 ? x : log1p(exp(x))", "softplus",
    backward="grad_x = -grad_y * expm1(-y)",
)  # fmt: skip


class Softplus(nn.Module):
    """On a GPU it saves its output, as the Linear that follows does, and not its input too."""

    def forward(self, x: Tensor) -> Tensor:
        # On the CPU torch's is vectorised, and takes a thirtieth of the time.
        return SOFTPLUS(x) if x.is_cuda else F.softplus(x)


class GaussianBasis(nn.Module):
    """A distance as the values of Gaussians, which all layers of a network share."""

    def __init__(self, gaussians: int, cutoff: float) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, cutoff, gaussians))
        self.gap = cutoff / (gaussians - 1)

    def forward(self, distance: Tensor) -> Tensor:
        """[E] gives [E, gaussians]."""
        return torch.exp(-0.5 * ((distance.unsqueeze(1) - self.centers) / self.gap) ** 2)


class SchNetConvolution(nn.Module):
    """K. T. Schütt et al., "SchNet", NeurIPS 2017, equation 2."""

    def __init__(self, width: int, gaussians: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.filters = nn.Sequential(
            nn.Linear(gaussians, width), Softplus(), nn.Linear(width, width)
        )
        self.before, self.after = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor, distance: Tensor, basis: Tensor, **graph: Any) -> Tensor:
        """``x``: [N, width]; ``distance``: [E]; ``basis``: [E, gaussians]."""
        smooth = 0.5 * (torch.cos(distance * (torch.pi / self.cutoff)) + 1)
        filters = (self.filters(basis), smooth.unsqueeze(1))
        return self.after(FILTERED(self.before(x), *filters, **to_nodes(graph, x)))


# ---- PaiNN: messages of scalars and vectors ----

SCALARS = IndexedKernel("T s[src], T filter", "T ds[dst]", "ds = s * filter", "scalars")
VECTORS = IndexedKernel(
    "T v[src], T gate[src], T gate_filter, T along[src], T along_filter, T direction",
    "T dv[dst]",
    "dv = v * gate * gate_filter + along * along_filter * direction",
    "vectors",
)


class PaiNNMessage(nn.Module):
    """K. T. Schütt et al., "Equivariant message passing", ICML 2021, equations 7 and 8."""

    def __init__(self, width: int, radial: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filters = nn.Linear(radial, 3 * width)

    def forward(
        self, s: Tensor, v: Tensor, basis: Tensor, direction: Tensor, **graph: Any
    ) -> tuple[Tensor, Tensor]:
        """[N, width], [N, 3, width], and of the edges [E, radial], [E, 3]."""
        of_s, of_v, of_direction = self.phi(s).chunk(3, dim=-1)
        # Three products, so that the backward pass joins no gradients of the size [E, 3 * width].
        weights, biases = self.filters.weight.chunk(3), self.filters.bias.chunk(3)
        by_s, by_v, by_direction = map(F.linear, (basis,) * 3, weights, biases)
        gates = (of_v.unsqueeze(1), by_v.unsqueeze(1))
        along = (of_direction.unsqueeze(1), by_direction.unsqueeze(1))
        graph = to_nodes(graph, s)
        dv = VECTORS(v, *gates, *along, direction.unsqueeze(2), **graph)
        return s + SCALARS(of_s, by_s, **graph), v + dv


# ---- GraphSAGE ----

COPIES = {
    how: IndexedKernel("T x[src]", "T out[dst]", "out = x", f"copy_{how}", reduce=how)
    for how in ("sum", "mean", "amax")
}


class GraphSAGE(nn.Module):
    """W. Hamilton et al., "Inductive representation learning on large graphs", NeurIPS 2017."""

    def __init__(self, inputs: int, outputs: int, aggregate: str = "mean") -> None:
        super().__init__()
        self.aggregate = COPIES[aggregate]
        self.of_neighbours = nn.Linear(inputs, outputs)
        self.of_self = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, **graph: Any) -> Tensor:
        """``x``: [N, inputs]."""
        of_neighbours = self.aggregate(x, **to_nodes(graph, x))
        return self.of_neighbours(of_neighbours) + self.of_self(x)


# ---- GATv2: attention over neighbours ----

LOGITS = IndexedKernel(
    "T l[src], T r[dst], T a, T slope",
    "T logit",
    "T sum = l + r; logit = a * (sum > 0 ? sum : slope * sum)",
    "logits",
    features="sum",
)
LARGEST = IndexedKernel("T logit", "T top[dst]", "top = logit", "largest", reduce="amax")
EXPONENTIALS = IndexedKernel(
    "T logit, T top[dst]", "T e, T total[dst]", "e = exp(logit - top); total = e", "exponentials"
)
ATTENDED = IndexedKernel(
    "T e, T total[dst], T l[src]", "T out[dst]", "out = e / total * l", "attended"
)


class GATv2(nn.Module):
    """S. Brody et al., "How attentive are graph attention networks?", ICLR 2022, equation 7."""

    def __init__(self, inputs: int, width: int, heads: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(inputs, heads * width) for _ in range(2))
        self.attention = nn.Parameter(torch.randn(heads, width) / width**0.5)

    def forward(self, x: Tensor, slope: float = 0.2, **graph: Any) -> Tensor:
        """``x``: [N, inputs] gives [N, heads, width]."""
        to = graph if "plan" in graph else {"dst": graph["dst"]}
        left, right = (
            layer(x).unflatten(1, self.attention.shape) for layer in (self.left, self.right)
        )
        logit = LOGITS(left, right, self.attention, slope, **graph)  # [E, heads]
        # What a softmax is the same without, and so its gradient.
        top = LARGEST(logit.detach(), **to_nodes(to, x))
        e, total = EXPONENTIALS(logit, top, **to)
        return ATTENDED(e.unsqueeze(2), total.unsqueeze(2), left, **graph)


# ---- EGNN ----

DISTANCES = IndexedKernel(
    "T from[src], T to[dst]", "T d", "d = (to - from) * (to - from)", "distances", features="sum"
)
MOVES = IndexedKernel(
    "T to[dst], T from[src], T scale", "T move[dst]", "move = (to - from) * scale", "moves",
    reduce="mean",
)  # fmt: skip
TOTAL = IndexedKernel("T message", "T out[dst]", "out = message", "total")


class EGNN(nn.Module):
    """V. G. Satorras et al., "E(n) equivariant graph neural networks", ICML 2021, eqs. 3 to 6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_edge = nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU())
        self.of_move = nn.Linear(width, 1, bias=False)
        self.of_node = nn.Linear(2 * width, width)

    def forward(self, h: Tensor, x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        """``h``: [N, width]; ``x``: [N, 3]."""
        distance = DISTANCES(x, x, src=src, dst=dst).unsqueeze(1)
        message = self.of_edge(torch.cat((h[dst], h[src], distance), dim=1))
        move = MOVES(x, x, self.of_move(message), src=src, dst=dst)
        total = TOTAL(message, dst=dst, sizes={"dst": len(h)})
        return h + self.of_node(torch.cat((h, total), dim=1)), x + move


# ---- DGCNN: EdgeConv ----

EDGES = IndexedKernel(
    "T of_difference[src], T own[dst], T own_difference[dst]",
    "T out[dst]",
    "out = max(own + of_difference - own_difference, T(0))",
    "edges",
    reduce="amax",
)


class EdgeConv(nn.Module):
    """Y. Wang et al., "Dynamic graph CNN", TOG 2019, equation 8: max of relu(A (xj - xi) + B xi).

    What is linear in the rows is computed for each point, not for each edge.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.of_difference = nn.Linear(inputs, outputs, bias=False)
        self.own = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, **graph: Any) -> Tensor:
        """``x``: [N, inputs]."""
        difference = self.of_difference(x)
        return EDGES(difference, self.own(x), difference, **graph)


def main() -> None:
    """Runs each layer once, on a random graph."""
    torch.manual_seed(0)
    src, dst = torch.randint(10, (40,)), torch.randint(10, (40,))
    x, at, graph = torch.randn(10, 8), torch.randn(10, 3), {"src": src, "dst": dst}
    away = at[src] - at[dst]
    distance = away.norm(dim=1)
    direction = F.normalize(away)
    basis, v = torch.randn(40, 5), torch.zeros(10, 3, 8)
    gaussians = GaussianBasis(16, 5.0)(distance)
    print("SchNet", *SchNetConvolution(8, 16, 5.0)(x, distance, gaussians, **graph).shape)
    print("PaiNN", *PaiNNMessage(8, 5)(x, v, basis, direction, **graph)[1].shape)
    print("GraphSAGE", *GraphSAGE(8, 4)(x, **graph).shape)
    print("GATv2", *GATv2(8, 4, 2)(x, **graph).shape)
    print("EGNN", *EGNN(8)(x, at, src, dst)[1].shape)
    print("EdgeConv", *EdgeConv(8, 4)(x, **graph).shape)


if __name__ == "__main__":
    main()
