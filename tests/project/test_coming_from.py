"""The pages for people who come from another library, docs/coming_from: every row of a table runs.

A row has a call of the other library, ours, and what both give. Ours always runs. Theirs runs where
the library is installed, on the same values as arrays of its own: torch and NumPy are; the others
need `pip install jax tensorflow-cpu onnx torch_scatter torch_geometric`, and CuPy a GPU too. A call
that returns nothing has changed the first array that it names.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import io
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from programs import ROOT

PAGES = sorted(p.stem for p in (ROOT / "docs/coming_from").glob("*.md") if p.stem != "README")


def text_of(page: str) -> str:
    return (ROOT / f"docs/coming_from/{page}.md").read_text("utf-8")


def rows_of(page: str) -> list[tuple[str, str, str]]:
    """Their call, ours, and the result, of each row of a table with a third column "gives"."""
    row = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
    return row.findall(text_of(page))


def names_of(page: str) -> dict[str, Any]:
    """What the blocks of the page define."""
    names: dict[str, Any] = {"__name__": page}
    for block in re.findall(r"^```python\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(block, names)
    return names


def evaluate(call: str, names: dict[str, Any]) -> Any:
    names = {
        name: copy.deepcopy(value) if isinstance(value, torch.Tensor | np.ndarray) else value
        for name, value in names.items()
    }
    result = None
    if isinstance(ast.parse(call).body[0], ast.Expr):
        result = eval(call, names)
    else:
        exec(call, names)
    if result is None:
        words = re.findall(r"\w+", call)
        result = next(names[word] for word in words if hasattr(names.get(word), "tolist"))
    return result


def numbers(result: Any) -> np.ndarray:
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu()
    return np.asarray(result.get() if hasattr(result, "get") else result, dtype=np.float64)


def run_onnx(operator: str, *inputs: Any, **attributes: Any) -> Any:
    """What ONNX's reference implementation gives."""
    from onnx import helper, reference

    names = [f"input{i}" for i in range(len(inputs))]
    arrays = [np.asarray(value) for value in inputs]
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(operator, names, ["output"], **attributes)
    output = helper.make_empty_tensor_value_info("output")
    model = helper.make_model(helper.make_graph([node], "row", infos, [output]))
    feeds = dict(zip(names, arrays, strict=True))
    return reference.ReferenceEvaluator(model).run(None, feeds)[0]


def their_library(page: str) -> tuple[dict[str, Any], Callable[[torch.Tensor], Any]] | None:
    """What its calls name, and how a tensor becomes an array of it. None: it is not installed."""
    package = {"pyg": "torch_geometric"}.get(page, page)
    if importlib.util.find_spec(package) is None:
        if page != "torch_scatter":
            return None
        package = "torch_ops.compat.torch_scatter"  # which promises the same
    module = importlib.import_module(package)
    if page == "pyg":
        importlib.import_module("torch_geometric.nn")
    match page:
        case "torch":
            return {"torch": torch, "F": torch.nn.functional}, lambda tensor: tensor
        case "torch_scatter":
            return vars(module), lambda tensor: tensor
        case "pyg":
            names = {**vars(module.utils), **vars(module.nn), **vars(module.index)}
            return names, lambda tensor: tensor
        case "numpy":
            return {"np": np}, lambda tensor: tensor.numpy()
        case "cupy":
            return {"cp": module}, lambda tensor: module.asarray(tensor.numpy())
        case "tensorflow":
            return {"tf": module}, lambda tensor: module.constant(tensor.numpy())
        case "jax":
            jnp = importlib.import_module("jax.numpy")
            return {"jax": module, "jnp": jnp}, lambda tensor: jnp.asarray(tensor.numpy())
        case "onnx":
            operators = {schema.name for schema in module.defs.get_all_schemas()}
            names = {operator: partial(run_onnx, operator) for operator in operators}
            return names, lambda tensor: tensor.numpy()
    raise AssertionError(f"{page}.md is of a library that this test does not know")


def test_every_library_has_its_page() -> None:
    assert PAGES == ["cupy", "jax", "numpy", "onnx", "pyg", "tensorflow", "torch", "torch_scatter"]


@pytest.mark.parametrize("page", PAGES)
def test_rows_give_what_they_say(page: str) -> None:
    rows = rows_of(page)
    # None is left out because it is written in another way.
    text = text_of(page)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    tables = text.count("| torch_ops | gives |")
    assert len(rows) == len(lines) - 2 * tables >= 5

    ours = names_of(page)
    library = their_library(page)
    for their_call, our_call, gives in rows:
        expected = np.asarray(eval(gives, {"nan": math.nan, "inf": math.inf}), dtype=np.float64)
        result = numbers(evaluate(our_call, ours))
        np.testing.assert_allclose(result, expected, rtol=1e-4, err_msg=our_call)
        if library is not None:
            names, convert = library
            for name, value in ours.items():
                if isinstance(value, torch.Tensor):
                    names[name] = convert(value)
                elif isinstance(value, np.ndarray):
                    names[name] = value
            result = numbers(evaluate(their_call, names))
            np.testing.assert_allclose(result, expected, rtol=1e-4, err_msg=their_call)
