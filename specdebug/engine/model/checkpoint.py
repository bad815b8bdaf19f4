"""A checkpoint folder as a lazy mapping from tensor names to tensors.

Reads ``model.safetensors``, ``model.safetensors.index.json`` with its shards, or ``pytorch_model.bin`` (as published
EAGLE heads ship). A tensor is read when it is asked for, so a big model is never held twice. A broken folder ends in a
one-line CheckpointError.
"""

import json
import os
import zipfile
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdebug.base.errors import CheckpointError, one_line
from specdebug.base.files import kind_of, read_file

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MAX_JSON_BYTES = 64 << 20
"""The size limit of a config or an index; the index of a model of a thousand layers has one MiB."""

MAX_NAME = 255
"""The most characters of a file's name on any file system."""


class Checkpoint:
    """The names, shapes and tensors of one folder, and which of them have been used."""

    def __init__(self, folder: Path) -> None:
        """Open ``folder``. Raises CheckpointError if there is no config, or no weights that can be read."""
        self.folder = folder
        self.config_file = folder / "config.json"
        self.config = read_json_object(self.config_file)
        self._sources = _open_weights(folder)
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    @property
    def names(self) -> Collection[str]:
        """The name of every tensor."""
        return self._sources.keys()

    def error(self, name: str, message: str) -> CheckpointError:
        """An error about one tensor, which names its file, or the folder without it."""
        source = self._sources.get(name)
        return CheckpointError(f"{source.file if source else self.folder}: tensor '{one_line(name)}' {message}")

    def floats(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name`` as stored: bf16, fp16 or fp32, of exactly ``shape``.
        Raises CheckpointError if it is missing, of another shape or of another dtype, or its file breaks off."""
        tensor = self.any(name, *shape)
        if tensor.dtype not in FLOAT_DTYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise self.error(name, f"is {dtype}; convert the weights to bf16, fp16 or fp32")
        return tensor

    def any(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name`` as ``floats`` gives it, but of any dtype."""
        source = self._sources.get(name)
        if source is None:
            raise self.error(name, "is missing; fetch the checkpoint again, or its config.json")
        self._asked.add(name)
        found = source.shape(name)
        if found != shape:
            raise self.error(name, f"has shape {list(found)}, but {self.config_file.name} calls for {list(shape)}")
        return source.tensor(name)

    def names_under(self, *prefixes: str) -> list[str]:
        """The names of tensors that begin with one of ``prefixes``."""
        return [name for name in self._sources if name.startswith(prefixes)]

    def refuse_leftovers(self, ignored: Iterable[str] = ()) -> None:
        """Raise CheckpointError for a tensor that no layer asked for, since the model would compute something else."""
        skip = self._asked.union(ignored)
        for name in sorted(self._sources):
            if name not in skip and not name.endswith("rotary_emb.inv_freq"):
                raise self.error(name, "has no place in this architecture; is config.json another model's?")


def read_json_object(file: Path) -> dict[str, Any]:
    """Parse one JSON object. Raises CheckpointError when the file is absent or holds something else."""
    try:
        data = json.loads(read_file(file, MAX_JSON_BYTES).decode())
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; give a Hugging Face checkpoint folder") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} cannot be read: {_line(error)}") from None
    except (ValueError, RecursionError) as error:  # ValueError itself: a number of more digits than Python converts
        raise CheckpointError(f"{file} is not JSON: {_line(error)}; fetch the checkpoint again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} holds a {type(data).__name__}, not a JSON object")
    return data


class _Safetensors:
    """A safetensors file, mapped into memory; opening it checks its header against its length."""

    def __init__(self, file: Path) -> None:
        self.file = file
        _refuse_other_kinds(file)
        try:
            self._handle: Any = safe_open(str(file), framework="pt")
        except FileNotFoundError:
            raise CheckpointError(f"{file} is missing; fetch the checkpoint again") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{file} is truncated or not safetensors ({_line(error)}); fetch it again") from None

    @cached_property
    def names(self) -> list[str]:
        return list(self._handle.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle.get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._handle.get_tensor(name)
        # a dtype unknown here
        except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"tensor '{one_line(name)}' cannot be read ({_line(error)})"
            raise CheckpointError(f"{self.file}: {problem}; fetch it again") from None
        return tensor


class _Pickled:
    """A ``torch.save`` state dict, loaded by the restricted unpickler and mapped where the format allows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        _refuse_other_kinds(file)
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except MemoryError:  # which says more of this machine than of the file
            raise
        except Exception as error:  # the restricted unpickler lets through whatever its callees raise
            problem = f"is truncated or not a plain state dict ({_line(error)})"
            raise CheckpointError(f"{file} {problem}; fetch it again") from None
        if not isinstance(loaded, dict) or not all(_is_plain(name, tensor) for name, tensor in loaded.items()):
            raise CheckpointError(f"{file} is not a plain state dict; save the model's state_dict() alone")
        self._tensors: dict[str, Tensor] = loaded
        self.names = list(loaded)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


_Source = _Safetensors | _Pickled


def _open_weights(folder: Path) -> dict[str, _Source]:
    """Map each tensor's name to the file that holds it."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    file = next((folder / name for name in names if os.path.lexists(folder / name)), None)
    if file is None:
        raise CheckpointError(f"{folder} holds no weights: none of {', '.join(names)}")
    if file.suffix == ".json":
        return _open_shards(file)
    source: _Source = _Pickled(file) if file.suffix == ".bin" else _Safetensors(file)
    return dict.fromkeys(source.names, source)


def _open_shards(index: Path) -> dict[str, _Source]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to files; fetch it again")
    shards: dict[str, _Safetensors] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or not file.isprintable() or len(file) > MAX_NAME:
            raise CheckpointError(f"{index} names the shard '{one_line(file)}', which is not a file beside it")
        shards[file] = _Safetensors(index.parent / file)
    for name, file in weight_map.items():
        if name not in shards[file].names:
            problem = f"tensor '{one_line(name)}' is missing, but {index.name} puts it here"
            raise CheckpointError(f"{index.parent / file}: {problem}")
    return {name: shards[file] for name, file in weight_map.items()}


def _refuse_other_kinds(file: Path) -> None:
    """Raise CheckpointError for a pipe, a device or a folder, on which the libraries wait for ever or fail oddly."""
    if kind := kind_of(file):
        raise CheckpointError(f"{file} cannot be read: is {kind}, not a file")


def _is_plain(name: object, tensor: object) -> bool:
    """Return True for an entry of a state dict whose numbers are in memory one after the other."""
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"  # a meta tensor has no numbers
    )


def _line(error: BaseException) -> str:
    """The first line of another library's message, at most 200 characters of it."""
    return one_line(str(error).strip().split("\n")[0], 200) or type(error).__name__
