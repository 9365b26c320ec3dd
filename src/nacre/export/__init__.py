"""A task as a file that needs no nacre: ONNX, torch.export, a LoRA adapter for PEFT."""

from nacre.export.adapter import to_peft
from nacre.export.onnx_file import OPSET, to_onnx
from nacre.export.program import to_torch
from nacre.export.taking_in import from_peft

__all__ = ["OPSET", "from_peft", "to_onnx", "to_peft", "to_torch"]
