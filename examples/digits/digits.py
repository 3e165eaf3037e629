"""The data and the network: 1,797 handwritten digits of 8 by 8 pixels (UCI's optdigits, as
scikit-learn ships them), and a small convolutional network."""

import numpy
import torch
from torch import nn


def load(path):
    """The rows of the training, and each fifth, which is held out: pairs of images and digits."""
    rows = numpy.loadtxt(path, delimiter=",", dtype=numpy.float32)
    images = torch.from_numpy(rows[:, :64] / 16).view(-1, 1, 8, 8)
    digits = torch.from_numpy(rows[:, 64]).long()
    held_out = torch.arange(len(rows)) % 5 == 0
    return (images[~held_out], digits[~held_out]), (images[held_out], digits[held_out])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )
