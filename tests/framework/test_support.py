"""Every op under everything that PyTorch offers around one.

The ops are found in the registry, their samples in the modules of their tests: an op without is a
failure. The checks are in tests/support/, a class for each subject. Each check of each op on each
device is a test of its own, whose outcome is a cell of the table of support in
docs/support.md (tools/support_table.py). What cannot hold for an op, its description exempts
it from, with a reason that the table shows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import ROOT
from support.compiling import CompileChecks, package_and_run
from support.differentiating import AutogradChecks
from support.layers import LayerChecks
from support.registry import described, described_layers, registered
from support.streams import CudaChecks
from support.tensors import TensorChecks
from support.training import TrainingChecks
from support.transforms import TransformChecks
from torch import nn

import torch_ops

OPS = described()
LAYERS = described_layers()


def test_every_op_has_samples() -> None:
    assert registered() == {op.name for op in OPS}


def test_every_layer_has_samples() -> None:
    public = (getattr(torch_ops, name) for name in torch_ops.__all__)
    layers = {each for each in public if isinstance(each, type) and issubclass(each, nn.Module)}
    assert layers == {layer.cls for layer in LAYERS}


@pytest.fixture(scope="session")
def package_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[torch.device], Any]:
    """Gives what AOTInductor's package of all ops returns; made once a device."""
    made: dict[str, Any] = {}

    def package(device: torch.device) -> Any:
        if device.type not in made:
            folder = tmp_path_factory.mktemp("package")
            try:
                made[device.type] = package_and_run(OPS, device, Path(folder))
            except Exception as error:  # once for all ops, not half a minute for each
                made[device.type] = error
        if isinstance(made[device.type], Exception):
            raise made[device.type]
        return made[device.type]

    return package


@pytest.fixture
def packaged(device: torch.device, package_of: Callable[[torch.device], Any]) -> Any:
    return package_of(device)


class TestTransforms(TransformChecks):
    pass


class TestCompile(CompileChecks):
    pass


class TestAutograd(AutogradChecks):
    pass


class TestTensors(TensorChecks):
    pass


class TestTraining(TrainingChecks):
    pass


class TestLayers(LayerChecks):
    pass


if torch.cuda.is_available():

    @pytest.mark.parametrize("device", [torch.device("cuda")], ids=str)
    class TestCuda(CudaChecks):
        pass


def test_exemptions_name_checks() -> None:
    classes = (
        AutogradChecks,
        CompileChecks,
        CudaChecks,
        LayerChecks,
        TensorChecks,
        TrainingChecks,
        TransformChecks,
    )
    checks = {name.removeprefix("test_") for each in classes for name in vars(each)}
    for described_one in (*OPS, *LAYERS):
        assert set(described_one.exempt) <= checks, described_one
        assert all(described_one.exempt.values()), described_one


def test_table_is_written_from_outcomes() -> None:
    """That of docs/support.md: anew where ops or checks have come or gone, or a reason."""
    place = ROOT / "tools" / "support_table.py"
    spec = importlib.util.spec_from_file_location("support_table", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    cells = tool.read(tool.OUTCOMES)
    text = tool.DOCUMENT.read_text("utf-8")
    assert tool.written(text, tool.render(cells)) == text, "run tools/support_table.py"
    # What a machine without a GPU can renew is whole; of CUDA the table may say "not run".
    for subject, (checks, described_ones) in tool.subjects().items():
        for check in tool.checks_of(checks) if subject != "Cuda" else ():
            for each in described_ones:
                outcome = cells.get(("cpu", subject, check, str(each)))
                assert check in each.exempt or outcome == "passed", f"{check} of {each}"
