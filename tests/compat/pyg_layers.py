"""Each layer of torch_geometric.nn with a call of it, for test_pyg.py.

`LAYERS` has a function of a small graph for each, which returns the layer and its arguments;
`LEFT_OUT` the reason for those without.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import aggr, attention, conv, dense, kge, models, norm, pool

N, E, D = 12, 40, 8  # nodes, edges, features

Graph = SimpleNamespace
Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def graph() -> Graph:
    """Three graphs in a batch; no two edges alike, so that no two messages are."""
    torch.manual_seed(0)
    batch = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    pairs = [(i, j) for i in range(N) for j in range(N) if i != j and batch[i] == batch[j]]
    chosen = torch.randperm(len(pairs))[: len(pairs) - 4]
    edges = torch.tensor(pairs)[chosen].t().contiguous()
    count = edges.size(1)
    by_receiver = edges[:, edges[1].argsort(stable=True)]
    return Graph(
        x=torch.randn(N, D),
        pos=torch.randn(N, 3),
        normal=torch.nn.functional.normalize(torch.randn(N, 3)),
        z=torch.randint(1, 9, (N,)),
        kind=torch.randint(3, (N,)),
        batch=batch,
        edges=edges,
        sorted_edges=by_receiver,
        weight=torch.rand(count),
        attr=torch.rand(count, 3),
        edge_kind=torch.randint(3, (count,)),
        counts=torch.tensor([0, 1, 4, 4, 3]),
        dense=torch.randn(3, 5, D),
        adjacency=torch.rand(3, 5, 5),
        mask=torch.arange(5) < torch.tensor([[5], [4], [3]]),
    )


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers)


def by_edges(make: Callable[[], nn.Module], *names: str, **kwargs: Any) -> Callable[[Graph], Call]:
    """A layer that is called with features, edges and what else the graph has by these names."""
    return lambda g: (make(), (g.x, g.edges, *[getattr(g, name) for name in names]), kwargs)


def by_batch(make: Callable[[], nn.Module]) -> Callable[[Graph], Call]:
    return lambda g: (make(), (g.x, g.batch), {})


METADATA = (["a", "b"], [("a", "to", "b"), ("b", "to", "a")])


def hetero(g: Graph) -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    back = g.edges.flip(0)
    return {"a": g.x, "b": g.x * 2 - 1}, dict(zip(METADATA[1], (g.edges, back), strict=True))


class EdgeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * D + 3, 3)

    def forward(self, src: Tensor, dst: Tensor, attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        return self.inner(torch.cat([src, dst, attr], 1))


class NodeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D + 3, D)

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.utils import scatter

        mean = scatter(attr, edges[1], dim=0, dim_size=x.size(0), reduce="mean")
        return self.inner(torch.cat([x, mean], 1))


def complete(x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of a graph, with their lengths: SchNet's edges, without a search for neighbours."""
    pairs = (batch[:, None] == batch[None]) & ~torch.eye(len(batch), dtype=torch.bool)
    edges = pairs.nonzero().t()
    return edges, (x[edges[0]] - x[edges[1]]).norm(dim=1)


class TwoLayers(nn.Module):
    def __init__(self, out: int = D) -> None:
        super().__init__()
        self.first, self.second = pyg.GCNConv(D, D), pyg.GCNConv(D, out)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).tanh(), edges)


class Variational(TwoLayers):
    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x, edges), self.second(x, edges)


class Encoded(nn.Module):
    """What an autoencoder's layers compute: an encoding, and the decoder's values of the edges."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        z = self.model.encode(x, edges)
        return z, self.model.decode(z, edges)


def signed(g: Graph) -> Call:
    return pyg.SignedConv(D, 4, first_aggr=True), (g.x, g.edges[:, ::2], g.edges[:, 1::2]), {}


def tgn(g: Graph) -> Call:
    layer = pyg.TGNMemory(
        N, 3, D, 4, models.tgn.IdentityMessage(3, D, 4), models.tgn.MeanAggregator()
    )
    layer.update_state(g.edges[0], g.edges[1], torch.arange(g.edges.size(1)), g.attr)
    return layer, (torch.arange(N),), {}


LAYERS: dict[str, Callable[[Graph], Call]] = {
    # ---- conv
    "AGNNConv": by_edges(lambda: pyg.AGNNConv()),
    "APPNP": by_edges(lambda: pyg.APPNP(2, 0.1), "weight"),
    "ARMAConv": by_edges(lambda: pyg.ARMAConv(D, 4, 2, 2), "weight"),
    "AntiSymmetricConv": by_edges(lambda: pyg.AntiSymmetricConv(D)),
    "CGConv": by_edges(lambda: pyg.CGConv(D, 3, aggr="max"), "attr"),
    "ChebConv": by_edges(lambda: pyg.ChebConv(D, 4, 3), "weight"),
    "ClusterGCNConv": by_edges(lambda: pyg.ClusterGCNConv(D, 4)),
    "DNAConv": lambda g: (
        pyg.DNAConv(D, 2),
        (torch.stack([g.x, 2 - g.x, g.x.square()], 1), g.edges, g.weight),
        {},
    ),
    "DirGNNConv": by_edges(lambda: pyg.DirGNNConv(pyg.SAGEConv(D, 4))),
    "EGConv": by_edges(
        lambda: pyg.EGConv(D, 8, ["sum", "mean", "symnorm", "max", "min", "var", "std"], 2, 2)
    ),
    "EdgeConv": by_edges(lambda: pyg.EdgeConv(mlp(2 * D, 4))),
    "FAConv": lambda g: (pyg.FAConv(D), (g.x, 1 - g.x, g.edges), {}),
    "FastRGCNConv": by_edges(lambda: pyg.FastRGCNConv(D, 4, 3), "edge_kind"),
    "FeaStConv": by_edges(lambda: pyg.FeaStConv(D, 4, 2)),
    "FiLMConv": by_edges(lambda: pyg.FiLMConv(D, 4, 3), "edge_kind"),
    "GATConv": by_edges(lambda: pyg.GATConv(D, 4, 2, edge_dim=3), "attr"),
    "GATv2Conv": by_edges(lambda: pyg.GATv2Conv(D, 4, 2, edge_dim=3), "attr"),
    "GCN2Conv": lambda g: (pyg.GCN2Conv(D, 0.1), (g.x, 1 - g.x, g.edges, g.weight), {}),
    "GCNConv": by_edges(lambda: pyg.GCNConv(D, 4), "weight"),
    "GENConv": by_edges(lambda: pyg.GENConv(D, 4, learn_t=True, edge_dim=3), "attr"),
    "GINConv": by_edges(lambda: pyg.GINConv(mlp(D, 4), train_eps=True)),
    "GINEConv": by_edges(lambda: pyg.GINEConv(mlp(D, 4), edge_dim=3), "attr"),
    "GMMConv": by_edges(lambda: pyg.GMMConv(D, 4, 3, 2), "attr"),
    "GPSConv": by_edges(lambda: pyg.GPSConv(D, pyg.SAGEConv(D, D), heads=2), "batch"),
    "GatedGraphConv": by_edges(lambda: pyg.GatedGraphConv(D, 2), "weight"),
    "GeneralConv": lambda g: (
        pyg.GeneralConv(D, 4, 3, attention=True, heads=2),
        (g.x, g.edges),
        {"edge_attr": g.attr},
    ),
    "GraphConv": by_edges(lambda: pyg.GraphConv(D, 4, aggr="max"), "weight"),
    "HANConv": lambda g: (pyg.HANConv(D, 4, METADATA, 2), hetero(g), {}),
    "HEATConv": by_edges(lambda: pyg.HEATConv(D, 4, 3, 3, 2, 3, 2, 2), "kind", "edge_kind", "attr"),
    "HGTConv": lambda g: (pyg.HGTConv(D, 4, METADATA, 2), hetero(g), {}),
    "HeteroConv": lambda g: (
        pyg.HeteroConv({way: pyg.SAGEConv((D, D), 4, "max") for way in METADATA[1]}),
        hetero(g),
        {},
    ),
    "HypergraphConv": lambda g: (
        pyg.HypergraphConv(D, 4, use_attention=True, heads=2),
        (g.x, torch.stack([g.edges[0], g.batch[g.edges[1]]])),
        {"hyperedge_attr": g.x[:3] * 2},
    ),
    "LEConv": by_edges(lambda: pyg.LEConv(D, 4), "weight"),
    "LGConv": by_edges(lambda: pyg.LGConv(), "weight"),
    "MFConv": by_edges(lambda: pyg.MFConv(D, 4)),
    "MixHopConv": by_edges(lambda: pyg.MixHopConv(D, 4), "weight"),
    "NNConv": by_edges(lambda: pyg.NNConv(D, 4, mlp(3, 4 * D), "mean"), "attr"),
    "PDNConv": by_edges(lambda: pyg.PDNConv(D, 4, 3, 5), "attr"),
    "PNAConv": lambda g: (
        pyg.PNAConv(
            D,
            4,
            ["mean", "min", "max", "std", "var", "sum"],
            ["identity", "amplification", "attenuation", "linear", "inverse_linear"],
            g.counts,
            edge_dim=3,
        ),
        (g.x, g.edges, g.attr),
        {},
    ),
    "PPFConv": lambda g: (
        pyg.PPFConv(mlp(D + 4, 6), mlp(6, 4)),
        (g.x, g.pos, g.normal, g.edges),
        {},
    ),
    "PointGNNConv": lambda g: (
        pyg.PointGNNConv(mlp(D, 3), mlp(D + 3, 5), mlp(5, D)),
        (g.x, g.pos, g.edges),
        {},
    ),
    "PointNetConv": lambda g: (
        pyg.PointNetConv(mlp(D + 3, 6), mlp(6, 4)),
        (g.x, g.pos, g.edges),
        {},
    ),
    "PointTransformerConv": lambda g: (pyg.PointTransformerConv(D, 4), (g.x, g.pos, g.edges), {}),
    "RGATConv": by_edges(lambda: pyg.RGATConv(D, 4, 3, heads=2, edge_dim=3), "edge_kind", "attr"),
    "RGCNConv": by_edges(lambda: pyg.RGCNConv(D, 4, 3), "edge_kind"),
    "ResGatedGraphConv": by_edges(lambda: pyg.ResGatedGraphConv(D, 4, edge_dim=3), "attr"),
    "SAGEConv": by_edges(
        lambda: pyg.SAGEConv(D, 4, ["mean", "max", "std", "softmax", "powermean"])
    ),
    "SGConv": by_edges(lambda: pyg.SGConv(D, 4, 2), "weight"),
    "SSGConv": by_edges(lambda: pyg.SSGConv(D, 4, 0.1, 2), "weight"),
    "SignedConv": signed,
    "SimpleConv": by_edges(lambda: pyg.SimpleConv("mean", "sum"), "weight"),
    "SuperGATConv": by_edges(lambda: pyg.SuperGATConv(D, 4, 2)),
    "TAGConv": by_edges(lambda: pyg.TAGConv(D, 4), "weight"),
    "TransformerConv": by_edges(lambda: pyg.TransformerConv(D, 4, 2, edge_dim=3), "attr"),
    "WLConvContinuous": by_edges(lambda: pyg.WLConvContinuous(), "weight"),
    # ---- aggr
    "AttentionalAggregation": by_batch(lambda: aggr.AttentionalAggregation(mlp(D, 1), mlp(D, 4))),
    "DeepSetsAggregation": by_batch(lambda: aggr.DeepSetsAggregation(mlp(D, 4), mlp(4, 4))),
    "DegreeScalerAggregation": lambda g: (
        aggr.DegreeScalerAggregation(["mean", "max"], ["identity", "linear"], g.counts),
        (g.x, g.batch),
        {},
    ),
    "EquilibriumAggregation": by_batch(lambda: aggr.EquilibriumAggregation(D, 4, [5])),
    "GRUAggregation": by_batch(lambda: aggr.GRUAggregation(D, 4)),
    "GraphMultisetTransformer": by_batch(lambda: aggr.GraphMultisetTransformer(D, 2)),
    "LCMAggregation": by_batch(lambda: aggr.LCMAggregation(D, 4)),
    "LSTMAggregation": by_batch(lambda: aggr.LSTMAggregation(D, 4)),
    "MLPAggregation": by_batch(lambda: aggr.MLPAggregation(D, 4, 5, num_layers=1)),
    "MaxAggregation": by_batch(lambda: aggr.MaxAggregation()),
    "MeanAggregation": by_batch(lambda: aggr.MeanAggregation()),
    "MedianAggregation": by_batch(lambda: aggr.MedianAggregation()),
    "MinAggregation": by_batch(lambda: aggr.MinAggregation()),
    "MulAggregation": by_batch(lambda: aggr.MulAggregation()),
    "MultiAggregation": by_batch(lambda: aggr.MultiAggregation(["max", "std", "mul"])),
    "PatchTransformerAggregation": by_batch(
        lambda: aggr.PatchTransformerAggregation(D, 4, 2, 4, aggr=["mean", "max", "var"])
    ),
    "PowerMeanAggregation": by_batch(lambda: aggr.PowerMeanAggregation(2.0, learn=True)),
    "QuantileAggregation": by_batch(lambda: aggr.QuantileAggregation([0.3, 0.5])),
    "Set2Set": by_batch(lambda: aggr.Set2Set(D, 2)),
    "SetTransformerAggregation": by_batch(lambda: aggr.SetTransformerAggregation(D)),
    "SoftmaxAggregation": by_batch(lambda: aggr.SoftmaxAggregation(learn=True)),
    "SortAggregation": by_batch(lambda: aggr.SortAggregation(2)),
    "StdAggregation": by_batch(lambda: aggr.StdAggregation()),
    "SumAggregation": by_batch(lambda: aggr.SumAggregation()),
    "VarAggregation": by_batch(lambda: aggr.VarAggregation()),
    "VariancePreservingAggregation": by_batch(lambda: aggr.VariancePreservingAggregation()),
    # ---- norm
    "BatchNorm": lambda g: (norm.BatchNorm(D), (g.x,), {}),
    "DiffGroupNorm": lambda g: (norm.DiffGroupNorm(D, 2), (g.x,), {}),
    "GraphNorm": by_batch(lambda: norm.GraphNorm(D)),
    "GraphSizeNorm": by_batch(lambda: norm.GraphSizeNorm()),
    "HeteroBatchNorm": lambda g: (norm.HeteroBatchNorm(D, 3), (g.x, g.kind), {}),
    "HeteroLayerNorm": lambda g: (norm.HeteroLayerNorm(D, 3), (g.x, g.kind), {}),
    "InstanceNorm": by_batch(lambda: norm.InstanceNorm(D, affine=True)),
    "LayerNorm": by_batch(lambda: norm.LayerNorm(D)),
    "MeanSubtractionNorm": by_batch(lambda: norm.MeanSubtractionNorm()),
    "MessageNorm": lambda g: (norm.MessageNorm(True), (g.x, 1 - g.x), {}),
    "PairNorm": by_batch(lambda: norm.PairNorm()),
    # ---- pool
    "ASAPooling": lambda g: (pool.ASAPooling(D), (g.x, g.edges, None, g.batch), {}),
    "EdgePooling": lambda g: (pool.EdgePooling(D), (g.x, g.edges, g.batch), {}),
    "MemPooling": by_batch(lambda: pool.MemPooling(D, 4, 2, 3)),
    "SAGPooling": lambda g: (pool.SAGPooling(D), (g.x, g.edges, g.attr, g.batch), {}),
    "TopKPooling": lambda g: (pool.TopKPooling(D), (g.x, g.edges, g.attr, g.batch), {}),
    # ---- models
    "ARGA": by_edges(lambda: Encoded(models.ARGA(TwoLayers(), mlp(D, 1)))),
    "ARGVA": by_edges(lambda: Encoded(models.ARGVA(Variational(), mlp(D, 1)).eval())),
    "ARLinkPredictor": by_edges(lambda: models.ARLinkPredictor(D, 8, 4)),
    "AttentiveFP": by_edges(lambda: models.AttentiveFP(D, 6, 4, 3, 2, 2), "attr", "batch"),
    "DeepGCNLayer": by_edges(
        lambda: models.DeepGCNLayer(pyg.GENConv(D, D, "powermean", learn_p=True), nn.LayerNorm(D))
    ),
    "DeepGraphInfomax": by_edges(
        lambda: models.DeepGraphInfomax(
            D, TwoLayers(), lambda z, *a, **k: z.mean(0).sigmoid(), lambda x, e: (x.flip(0), e)
        )
    ),
    "EdgeCNN": by_edges(lambda: models.EdgeCNN(D, 6, 2, 4, act="tanh")),
    "GAE": by_edges(lambda: Encoded(models.GAE(TwoLayers()))),
    "GAT": by_edges(lambda: models.GAT(D, 6, 2, 4, v2=True, heads=2, jk="lstm")),
    "GCN": by_edges(lambda: models.GCN(D, 6, 2, 4, norm="GraphNorm"), "weight"),
    "GIN": by_edges(lambda: models.GIN(D, 6, 2, 4)),
    "GraphSAGE": by_edges(lambda: models.GraphSAGE(D, 6, 2, 4, aggr="max", act="tanh")),
    "GraphUNet": lambda g: (models.GraphUNet(D, 6, 4, 2), (g.x, g.edges, g.batch), {}),
    "GroupAddRev": by_edges(
        lambda: models.GroupAddRev(pyg.SAGEConv(D // 2, D // 2), num_groups=2, disable=True)
    ),
    "InnerProductDecoder": by_edges(lambda: models.InnerProductDecoder()),
    "JumpingKnowledge": lambda g: (
        models.JumpingKnowledge("lstm", D, 2),
        ([g.x, 1 - g.x],),
        {},
    ),
    "HeteroJumpingKnowledge": lambda g: (
        models.HeteroJumpingKnowledge(["a", "b"], "max"),
        ({"a": [g.x, 1 - g.x], "b": [g.x * 2, g.x.square()]},),
        {},
    ),
    "LINKX": lambda g: (models.LINKX(N, D, 6, 4, 2), (g.x, g.sorted_edges), {}),
    "LabelPropagation": lambda g: (models.LabelPropagation(2, 0.5), (g.kind, g.edges), {}),
    "LightGCN": lambda g: (models.LightGCN(N, 6, 2), (g.edges,), {}),
    "MLP": by_batch(lambda: models.MLP([D, 6, 4], norm="graph_norm")),
    "MaskLabel": lambda g: (models.MaskLabel(3, D), (g.x, g.kind, g.kind > 0), {}),
    "MetaLayer": lambda g: (models.MetaLayer(EdgeModel(), NodeModel()), (g.x, g.edges, g.attr), {}),
    "NeuralFingerprint": by_edges(lambda: models.NeuralFingerprint(D, 6, 4, 2), "batch"),
    "PMLP": by_edges(lambda: models.PMLP(D, 6, 4, 2, norm=False).eval()),
    "PNA": lambda g: (
        models.PNA(
            D, 6, 2, 4, aggregators=["mean", "std"], scalers=["identity", "linear"], deg=g.counts
        ),
        (g.x, g.edges),
        {},
    ),
    "Polynormer": by_edges(
        lambda: models.Polynormer(D, 6, 4, 2, 1, heads=2, local_attn=True).eval(), "batch"
    ),
    "RECT_L": by_edges(lambda: models.RECT_L(D, 6), "weight"),
    "SGFormer": by_edges(lambda: models.SGFormer(D, 6, 4).eval(), "batch"),
    "SchNet": lambda g: (
        models.SchNet(8, 6, 2, 5, interaction_graph=complete, readout="mean"),
        (g.z, g.pos, g.batch),
        {},
    ),
    "SignedGCN": lambda g: (
        models.SignedGCN(D, 6, 2),
        (g.x, g.edges[:, ::2], g.edges[:, 1::2]),
        {},
    ),
    "TGNMemory": tgn,
    "VGAE": by_edges(lambda: Encoded(models.VGAE(Variational()).eval())),
    # ---- dense
    "DMoNPooling": lambda g: (dense.DMoNPooling(D, 2), (g.dense, g.adjacency, g.mask), {}),
    "DenseGATConv": lambda g: (dense.DenseGATConv(D, 4, 2), (g.dense, g.adjacency, g.mask), {}),
    "DenseGCNConv": lambda g: (dense.DenseGCNConv(D, 4), (g.dense, g.adjacency, g.mask), {}),
    "DenseGINConv": lambda g: (dense.DenseGINConv(mlp(D, 4)), (g.dense, g.adjacency, g.mask), {}),
    "DenseGraphConv": lambda g: (
        dense.DenseGraphConv(D, 4, "max"),
        (g.dense, g.adjacency, g.mask),
        {},
    ),
    "DenseSAGEConv": lambda g: (dense.DenseSAGEConv(D, 4), (g.dense, g.adjacency, g.mask), {}),
    "HeteroDictLinear": lambda g: (
        dense.HeteroDictLinear({"a": D, "b": D}, 4),
        ({"a": g.x, "b": g.x},),
        {},
    ),
    "HeteroLinear": lambda g: (dense.HeteroLinear(D, 4, 3), (g.x, g.kind), {}),
    "Linear": lambda g: (dense.Linear(D, 4), (g.x,), {}),
    # ---- kge, attention, others
    "ComplEx": lambda g: (kge.ComplEx(N, 3, 4), (g.edges[0], g.edge_kind, g.edges[1]), {}),
    "DistMult": lambda g: (kge.DistMult(N, 3, 4), (g.edges[0], g.edge_kind, g.edges[1]), {}),
    "RotatE": lambda g: (kge.RotatE(N, 3, 4), (g.edges[0], g.edge_kind, g.edges[1]), {}),
    "TransE": lambda g: (kge.TransE(N, 3, 4), (g.edges[0], g.edge_kind, g.edges[1]), {}),
    "PerformerAttention": lambda g: (attention.PerformerAttention(D, 2, 4), (g.dense,), {}),
    "PolynormerAttention": lambda g: (
        attention.PolynormerAttention(D, 2, 4),
        (g.dense, g.mask),
        {},
    ),
    "QFormer": lambda g: (attention.QFormer(D, 8, 4, 2, 1), (g.dense,), {}),
    "SGFormerAttention": lambda g: (attention.SGFormerAttention(D, 2, 4), (g.dense, g.mask), {}),
    "PositionalEncoding": lambda g: (pyg.PositionalEncoding(4), (g.weight,), {}),
    "Sequential": by_edges(
        lambda: pyg.Sequential(
            "x, edges", [(pyg.SAGEConv(D, 6), "x, edges -> x"), nn.Tanh(), nn.Linear(6, 4)]
        )
    ),
    "TemporalEncoding": lambda g: (pyg.TemporalEncoding(4), (g.weight,), {}),
}

_SEARCH = "it searches for neighbours, which needs torch_cluster or pyg-lib"
_SPARSE = "it takes a torch_sparse.SparseTensor or calls torch_sparse"
_BASE = "a base class, which computes nothing"
LEFT_OUT = {
    "Aggregation": _BASE,
    "KGEModel": _BASE,
    "MessagePassing": _BASE,
    "CuGraphGATConv": "it runs on a GPU, with pylibcugraphops",
    "CuGraphRGCNConv": "it runs on a GPU, with pylibcugraphops",
    "CuGraphSAGEConv": "it runs on a GPU, with pylibcugraphops",
    "FusedGATConv": "it runs on a GPU, with dgNN",
    "DataParallel": "it runs on GPUs",
    "DynamicEdgeConv": _SEARCH,
    "GravNetConv": _SEARCH,
    "XConv": _SEARCH,
    "DimeNet": _SEARCH,
    "DimeNetPlusPlus": _SEARCH,
    "GNNFF": _SEARCH,
    "ViSNet": _SEARCH,
    "ClusterPooling": "it needs SciPy",
    "GlobalAttention": "an old name of AttentionalAggregation",
    "SplineConv": "it needs torch_spline_conv or pyg-lib",
    "PANConv": _SPARSE,
    "PANPooling": _SPARSE,
    "MetaPath2Vec": "it walks at random, and has an embedding alone to differentiate",
    "Node2Vec": "it walks at random, which needs pyg-lib or torch_cluster",
    "MeshCNNConv": "it indexes features of edges itself, and reduces nothing",
    "WLConv": "it colours nodes by hashes of integers",
    "CorrectAndSmooth": "it has no forward; it is made of LabelPropagation",
    "GPSE": "a stack of ResGatedGraphConv, MLP and norms, made from a configuration",
    "GPSENodeEncoder": "an MLP",
    "LPFormer": "it needs a sparse adjacency matrix and PageRank scores of numba",
    "RENet": "it is made for the events of a data set",
    "Reshape": "a view",
}


def names() -> list[str]:
    """Of all layers: of modules, without aliases."""
    found = {}
    for module in (conv, aggr, norm, pool, models, dense, kge, attention, pyg):
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, nn.Module) and name[0] != "_":
                found[value.__name__] = value
    return sorted(found)


def call_of(name: str) -> Call:
    """The layer and its arguments, of which those of floats require a gradient."""
    given = graph()
    torch.manual_seed(1)
    layer, args, kwargs = LAYERS[name](given)

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().requires_grad_()
        if isinstance(value, dict):
            return {key: convert(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(convert(each) for each in value)
        return value

    return layer, convert(args), convert(kwargs)


def floats(value: Any) -> list[Tensor]:
    """The tensors of floats in what a layer takes or returns."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in floats(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in floats(each)]
    if hasattr(value, "__dict__"):
        return floats(vars(value))
    return []


def run(name: str) -> tuple[list[Tensor], list[Tensor | None]]:
    """What a layer gives in float64, and the gradients of its inputs and parameters."""
    torch.set_default_dtype(torch.float64)
    try:
        return _run(name)
    finally:
        torch.set_default_dtype(torch.float32)


def _run(name: str) -> tuple[list[Tensor], list[Tensor | None]]:
    layer, args, kwargs = call_of(name)
    torch.manual_seed(2)
    outputs = floats(layer(*args, **kwargs))
    inputs = [*floats(args), *floats(kwargs), *layer.parameters()]
    loss = sum((o * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum() for o in outputs)
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        return outputs, []
    inputs = [each for each in inputs if each.requires_grad]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [output.detach() for output in outputs], list(grads)
