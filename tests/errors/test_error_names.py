"""The names in errors: of functions, axes and dtypes.

An index entry out of range is an error of the function that was called, and of its axis. Most
members of the gather family are made of others, on the CPU and on CUDA. A dtype has the name that
torch prints in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from jit_tools import needs_cuda_core
from torch import Tensor

import torch_ops
from torch_ops.jit import ElementwiseKernel, RawKernel, ReductionKernel

pytestmark = pytest.mark.usefixtures("sync_mode")

ALL = slice(None)

# The function's name, and a call with a source of shape [5, 5] and an index [4] with one bad entry.
CALLS: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("gather", lambda s, i: torch_ops.gather(s, i)),
    ("gather", lambda s, i: torch_ops.gather(s, i, dim=1)),
    ("batch_gather", lambda s, i: torch_ops.batch_gather(s, i.expand(5, 4))),
    ("take_along_dim", lambda s, i: torch_ops.take_along_dim(s, i[:, None], 0)),
    ("take_along_dim", lambda s, i: torch_ops.take_along_dim(s, i[None], 1)),
    ("take_along_dim", lambda s, i: torch_ops.take_along_dim(s[0], i)),
    ("gather_elements", lambda s, i: torch_ops.gather_elements(s, i.expand(5, 4), 1)),
    ("gather_elements", lambda s, i: torch_ops.gather_elements(s, i[:, None].clone(), 0)),
    ("scatter_elements_add", lambda s, i: torch_ops.scatter_elements_add(s[0, :4], i, (5,), 0)),
    ("scatter_add", lambda s, i: torch_ops.scatter_add(s[:4], i, 5)),
    ("scatter_add", lambda s, i: torch_ops.scatter_add(s[:4], i, 5, deterministic=True)),
    ("scatter_add_", lambda s, i: torch_ops.scatter_add_(s.clone(), s[:4], i)),
    ("scatter_add_", lambda s, i: torch_ops.scatter_add_(s.half(), s[:4].half(), i)),
    *(
        ("scatter", lambda s, i, reduce=reduce: torch_ops.scatter(s[:4], i, 5, reduce=reduce))
        for reduce in ("sum", "mean", "amax", "prod")
    ),
    *(
        (
            "scatter_",
            lambda s, i, how=how: torch_ops.scatter_(s.clone(), s[:4], i, reduce=how),
        )
        for how in ("sum", "mean", "amax")
    ),
    ("scatter", lambda s, i: torch_ops.scatter(s[:4], i, 5, reduce="std", correction=-1)),
    ("softmax", lambda s, i: torch_ops.softmax(s[:4], i, 5)),
    ("log_softmax", lambda s, i: torch_ops.log_softmax(s[:4].half(), i, 5)),
    ("logsumexp", lambda s, i: torch_ops.logsumexp(s[:4], i, 5).exp()),
    ("softmax", lambda s, i: torch_ops.softmax(s[:4].clone().requires_grad_(), i, 5)),
    ("softmax", lambda s, i: torch.vmap(lambda v: torch_ops.softmax(v, i, 5))(s[None, :4])),
    ("gather_nd", lambda s, i: torch_ops.gather_nd(s, i[:, None])),
    ("gather_nd", lambda s, i: torch_ops.gather_nd(s, torch.stack([i, i], 1))),
    ("index", lambda s, i: torch_ops.index(s, i)),
    ("index", lambda s, i: torch_ops.index(s, (i, i))),
    ("index", lambda s, i: torch_ops.index(s, (0, i))),
    ("index_put", lambda s, i: torch_ops.index_put(s, i, 1.0)),
    ("index_put_", lambda s, i: torch_ops.index_put_(s.clone(), (i, i), 1.0)),
    ("index_put", lambda s, i: torch_ops.index_put(s, (0, i), 1.0)),
    ("index_add", lambda s, i: torch_ops.index_add(s, i, 1.0)),
    ("index_add", lambda s, i: torch_ops.index_add(s, (i, i), 1.0)),
    ("index_add", lambda s, i: torch_ops.index_add(s, i, 1.0, deterministic=True)),
    ("index_add", lambda s, i: torch_ops.index_add(s, (0, i), 1.0)),
    ("index_add", lambda s, i: torch_ops.index_add(s[:, None], (i, ALL, i), 1.0)),
    ("index_put_", lambda s, i: torch_ops.index_put_(s.clone(), i, 1.0, accumulate=True)),
    ("index_put", lambda s, i: torch_ops.index_put(s, (i, i), 1.0, accumulate=True)),
    ("embedding", lambda s, i: torch_ops.embedding(i, s)),
    ("embedding", lambda s, i: torch_ops.embedding(i, s, padding_idx=0)),
    ("embedding_bag", lambda s, i: torch_ops.embedding_bag(i[None], s)),
    ("embedding_bag", lambda s, i: torch_ops.embedding_bag(i[None], s, mode="max")),
    ("embedding", lambda s, i: torch_ops.embedding(i, s.clone(), max_norm=1.0)),
    ("embedding_bag", lambda s, i: torch_ops.embedding_bag(i[None], s.clone(), max_norm=1.0)),
]


@pytest.mark.parametrize(
    ("name", "call"), CALLS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(CALLS)]
)
def test_members(device: torch.device, name: str, call: Callable[[Tensor, Tensor], Tensor]) -> None:
    source = torch.ones(5, 5, device=device)
    index = torch.tensor([0, 3, 9, 4], device=device)
    with pytest.raises(IndexError, match=f"^{name}: .* is 9, out of range for an axis of size 5"):
        call(source, index)
    index[2] = 2
    assert call(source, index).isfinite().all()


def test_offsets(device: torch.device) -> None:
    """Those of an op are no index, whatever the ops that it is made of call them."""
    values = torch.ones(4, 2, device=device)
    offsets = torch.tensor([0, 9, 4], device=device)
    entries = torch.tensor([0, 3, 1, 2], device=device)
    for name, call in (
        ("segment_reduce", lambda: torch_ops.segment_reduce(values, offsets)),
        ("gather_csr", lambda: torch_ops.gather_csr(values[:2], offsets, output_size=4)),
        ("softmax", lambda: torch_ops.softmax(values, offsets=offsets)),
        ("log_softmax", lambda: torch_ops.log_softmax(values, offsets=offsets)),
        ("logsumexp", lambda: torch_ops.logsumexp(values, offsets=offsets)),
        ("embedding_bag", lambda: torch_ops.embedding_bag(entries, values, offsets)),
        ("embedding_bag", lambda: torch_ops.embedding_bag(entries, values, offsets, mode="max")),
    ):
        with pytest.raises(IndexError, match=rf"^{name}: offsets\[1\] is 9, out of range"):
            call()


def test_axis_of_index(device: torch.device) -> None:
    """The source's own axis, though integers, slices and None come before the arrays."""
    source = torch.ones(2, 3, 4, 5, 6, device=device)
    good, bad = torch.tensor([0, 1], device=device), torch.tensor([0, 7], device=device)
    for indices, axis in (
        ((good, bad), 1),
        ((1, good, bad), 2),
        ((1, ALL, good, bad), 3),
        ((None, good, 0, bad), 2),
        ((..., 0, bad, good), 3),
        ((0, ..., good, bad), 4),
        ((0, good, None, 1, bad), 3),
        ((0, torch.ones(3, 4, dtype=torch.bool, device=device)[:, :1].expand(3, 4), bad[1:]), 3),
    ):
        message = rf"^index: entry \[.*\] of the index for axis {axis} is 7, out of range"
        with pytest.raises(IndexError, match=message):
            torch_ops.index(source, indices)
        for name, write in (
            ("index_put", lambda at: torch_ops.index_put(source, at, 1.0)),
            ("index_put_", lambda at: torch_ops.index_put_(source.clone(), at, 1.0)),
            ("index_add", lambda at: torch_ops.index_add(source, at, 1.0)),
        ):
            with pytest.raises(IndexError, match=message.replace("index:", f"{name}:", 1)):
                write(indices)
    with pytest.raises(
        IndexError, match=r"axis 0 of mask .* as axis 2 of source, which has size 4"
    ):
        torch_ops.index(source, (0, ALL, torch.ones(3, dtype=torch.bool, device=device)))
    with pytest.raises(IndexError, match="axis 3 of source has size 0"):
        torch_ops.index(source[:, :, :, :0], (0, ALL, good, good))


def test_under_vmap(device: torch.device) -> None:
    source = torch.ones(3, 4, 5, device=device)
    bad = torch.tensor([[0, 1], [4, 0], [1, 1]], device=device)
    with pytest.raises(IndexError, match=r"^index: .* for axis 0 is 4, out of range .* size 4"):
        torch.vmap(lambda s, i: torch_ops.index(s, (i, i)))(source, bad)
    with pytest.raises(IndexError, match=r"^batch_gather: "):
        torch.vmap(torch_ops.batch_gather)(source, bad[:, None].expand(3, 4, 2) + 1)


def test_the_name_of_a_caller(device: torch.device) -> None:
    """What compositions pass to the registered ops: in a graph that was traced, too."""
    gather = torch.ops.torch_ops.gather
    source, index = torch.ones(3, device=device), torch.tensor([4], device=device)
    with pytest.raises(IndexError, match=r"^batch_gather: index\[0\] is 4"):
        gather(source, index, name="batch_gather")
    assert gather(source, index, mode="fill", fill_value=7, name="index").tolist() == [7]
    with pytest.raises(ValueError, match=r'^embedding: mode must be .*"drop"'):
        gather(source, index, mode="drop", name="embedding")
    # A mode has no second part, and a name is one of those that live as long as the process.
    with pytest.raises(ValueError, match=r'^gather: mode must be .*"raise in embedding"'):
        gather(source, index, mode="raise in embedding")
    with pytest.raises(ValueError, match=r'^gather: name must be that of an op .*"mine"'):
        gather(source, index, name="mine")
    compiled = torch.compile(torch_ops.batch_gather, backend="aot_eager", fullgraph=True)
    with pytest.raises(IndexError, match=r"^batch_gather: "):
        compiled(source, index)


@pytest.mark.parametrize(
    ("name", "call"), CALLS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(CALLS)]
)
def test_mixed_devices(
    device: torch.device, name: str, call: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Known before anything is launched. Without a GPU the other device is one of no memory."""
    index = torch.tensor([0, 3, 2, 4], device="meta" if device.type == "cpu" else "cpu")
    with pytest.raises(RuntimeError, match=f"^{name}_?: .* on one device"):
        call(torch.ones(5, 5, device=device), index)


# What c10::toString makes of a dtype.
CPP_NAMES = re.compile(
    r"\b(?:Byte|Char|Short|U?Int\d*|Long|Half|B?Float\w*|Double|Complex\w+|Bool|Q\w*Int\w+|Bits\w+)\b"
)

REGISTERED = torch.ops.torch_ops
MOVE = ElementwiseKernel("T x, float32 y, int16 z", "T out", "out = x")
TOTAL = ReductionKernel("float32 x", "float32 out", "x", "a + b", "out = a", 0, name="total")
RAW = RawKernel("__global__ void f(const float* x, int n) {}", "f")
BITS, FLOAT4 = torch.bits8, torch.float4_e2m1fn_x2
REDUCTIONS = ("sum", "mean", "amax", "amin", "prod")

# The function's name; a call with a wrong dtype, made of a float32 source [5, 5] and an index [4];
# the dtypes that the message names.
WRONG_DTYPES: list[tuple[str, Callable[[Tensor, Tensor], object], str]] = [
    ("gather", lambda s, i: torch_ops.gather(s, i.double()), "float64"),
    ("batch_gather", lambda s, i: torch_ops.batch_gather(s[0], i.bool()), "bool"),
    ("take_along_dim", lambda s, i: torch_ops.take_along_dim(s[0], i.bool()), "bool"),
    ("gather_elements", lambda s, i: torch_ops.gather_elements(s[0], i.half(), 0), "float16"),
    ("gather_nd", lambda s, i: torch_ops.gather_nd(s, i.bfloat16()[:, None]), "bfloat16"),
    ("scatter_add", lambda s, i: torch_ops.scatter_add(s[:4], i.cfloat(), 5), "complex64"),
    ("gather_plan", lambda s, i: torch_ops.gather_plan(i.float(), 5), "float32"),
    ("embedding", lambda s, i: torch_ops.embedding(i.to(torch.uint16), s), "uint16"),
    ("index", lambda s, i: torch_ops.index(s, i.float()), "float32"),
    ("index", lambda s, i: torch_ops.index(s, (i, i.to(torch.uint32))), "uint32"),
    ("index_put_", lambda s, i: torch_ops.index_put_(s, (i, i.cdouble()), 1.0), "complex128"),
    ("index_add", lambda s, i: torch_ops.index_add(s, i.double(), 1.0), "float64"),
    ("masked_gather", lambda s, i: torch_ops.masked_gather(s[:4], i), "int64"),
    ("masked_gather", lambda s, i: REGISTERED.mask_positions(i.byte(), 2), "uint8"),
    *(
        ("scatter", lambda s, i, how=how: torch_ops.scatter(s.bool()[:4], i, 5, reduce=how), "bool")
        for how in REDUCTIONS
    ),
    *(
        ("scatter", lambda s, i, how=how: torch_ops.scatter(s, i.float(), 5, reduce=how), "float32")
        for how in REDUCTIONS
    ),
    ("scatter", lambda s, i: torch_ops.scatter(s.cfloat()[:4], i, 5, reduce="prod"), "complex64"),
    ("scatter_add", lambda s, i: torch_ops.scatter_add(s.bool()[:4], i, 5), "bool"),
    ("scatter_add_", lambda s, i: torch_ops.scatter_add_(s, s.bool()[:4], i), "bool"),
    ("scatter_add_", lambda s, i: torch_ops.scatter_add_(s, s.half(), i), "float32 float16"),
    ("scatter_", lambda s, i: torch_ops.scatter_(s, s.half(), i, reduce="max"), "float32 float16"),
    ("scatter", lambda s, i: torch_ops.scatter(s[:4].int(), i, 5, reduce="var"), "int32"),
    ("scatter", lambda s, i: torch_ops.scatter(s[:4], i, 5, reduce="any"), "float32"),
    ("masked_scatter", lambda s, i: torch_ops.masked_scatter(s, i), "int64"),
    ("embedding_bag", lambda s, i: torch_ops.embedding_bag(i[None].float(), s), "float32"),
    ("softmax", lambda s, i: torch_ops.softmax(s, offsets=i.float()), "float32"),
    (
        "scatter_elements_add",
        lambda s, i: torch_ops.scatter_elements_add(s[0, :4].bool(), i, (5,), 0),
        "bool",
    ),
    ("index_add", lambda s, i: torch_ops.index_add(s.bool(), i, True), "bool"),
    ("index_put", lambda s, i: torch_ops.index_put(s, i, s[0].double()), "float32 float64"),
    ("index_put_", lambda s, i: torch_ops.index_put_(s, i, s[0].long()), "float32 int64"),
    ("index_add", lambda s, i: torch_ops.index_add(s, i, s[0].bfloat16()), "float32 bfloat16"),
    ("gather", lambda s, i: torch_ops.gather(s.long(), i, mode="fill", fill_value=0.5), "int64"),
    ("gather", lambda s, i: torch_ops.gather(s.byte(), i, mode="fill", fill_value=-1), "uint8"),
    ("gather", lambda s, i: torch_ops.gather(s.half(), i, mode="fill", fill_value=1e9), "float16"),
    (
        "gather_nd",
        lambda s, i: torch_ops.gather_nd(s, i[:, None], mode="fill", fill_value=1j),
        "float32",
    ),
    ("gather", lambda s, i: torch_ops.gather(s.view(BITS), i, mode="fill"), "bits8"),
    ("gather_nd", lambda s, i: torch_ops.gather_nd(s.view(BITS), i[:, None], mode="fill"), "bits8"),
    (
        "gather_elements",
        lambda s, i: torch_ops.gather_elements(s[0].view(BITS), i, 0, mode="fill", fill_value=1),
        "bits8",
    ),
    (
        "masked_gather",
        lambda s, i: torch_ops.masked_gather(s.view(FLOAT4), s[:, 0] > 0, size=1),
        "float4_e2m1fn_x2",
    ),
    ("gather", lambda s, i: REGISTERED.gather.plan(s, i, i, i.int(), 5, 0, 0), "int64 int32"),
    ("relu_backward", lambda s, i: REGISTERED.relu_backward(s, s.double()), "float32 float64"),
    ("sigmoid_backward", lambda s, i: REGISTERED.sigmoid_backward(s, s.half()), "float32 float16"),
    ("relu_backward", lambda s, i: REGISTERED.relu_backward(i, i), "int64"),
    ("_relu_mask", lambda s, i: REGISTERED._relu_mask(i.short(), None), "int16"),
    ("sigmoid_backward", lambda s, i: REGISTERED.sigmoid_backward(i.int(), i.int()), "int32"),
    ("embedding", lambda s, i: torch_ops.embedding(i, s.cfloat(), max_norm=1.0), "complex64"),
    (
        "embedding_bag with max_norm: weight",
        lambda s, i: torch_ops.embedding_bag(i[None], s.cfloat(), max_norm=1.0),
        "complex64",
    ),
    (
        "embedding_bag: input",
        lambda s, i: torch_ops.embedding_bag(i[None].float(), s, max_norm=1.0),
        "float32",
    ),
    ("kernel", lambda s, i: MOVE(s.to(torch.float8_e5m2), s, 1), "float8_e5m2"),
    ("kernel", lambda s, i: MOVE(s, s.cdouble(), 1), "complex128"),
    ("kernel", lambda s, i: MOVE(s, s, s.bfloat16()), "bfloat16"),
    ("kernel", lambda s, i: MOVE(s, s, 0.5), "float64"),
    ("kernel", lambda s, i: MOVE(s, s, 1, out=s.long()), "float32 int64"),
    ("total", lambda s, i: TOTAL(s.cfloat()), "complex64"),
    ("total", lambda s, i: TOTAL(s, out=s[0, 0].bool()), "float32 bool"),
    ("RawKernel", lambda s, i: RAW(0, 1, (s.double(), 1)), "float64"),
    ("RawKernel", lambda s, i: RAW(0, 1, (None, i[0])), "int64"),
]


@pytest.mark.parametrize(
    ("name", "call", "dtypes"),
    [
        pytest.param(
            *case, id=f"{number}-{case[0]}", marks=needs_cuda_core if case[0] == "RawKernel" else ()
        )
        for number, case in enumerate(WRONG_DTYPES)
    ],
)
def test_wrong_dtypes(
    device: torch.device, name: str, call: Callable[[Tensor, Tensor], object], dtypes: str
) -> None:
    source = torch.ones(5, 5, device=device)
    index = torch.tensor([0, 3, 2, 4], device=device)
    with pytest.raises((TypeError, ValueError), match=f"^{name}") as error:
        call(source, index)
    message = str(error.value)
    for dtype in dtypes.split():
        assert re.search(rf"\btorch\.{dtype}\b", message), message
    assert not CPP_NAMES.search(message), message


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_every_dtype(device: torch.device) -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in dtypes - {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}:
        if not str(dtype).startswith("torch.q"):  # quantized tensors, which torch itself refuses
            with pytest.raises(TypeError, match=rf"but it is {re.escape(str(dtype))}\.$"):
                torch_ops.gather_plan(torch.empty(4, dtype=dtype, device=device), 5)
