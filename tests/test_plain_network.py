"""A method of plain torch in one file: a convolutional encoder of images, with batch normalisation and dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from viewfuse import Diverged, load
from viewfuse.engine.training import Stage, Training, TrainState
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork, embeddings
from viewfuse.neighbors.index import Samples


class Encoders(ClusterNetwork):
    """Images of 28 x 28 by convolutions, other views by linear layers; the code is the mean of those that are there."""

    def __init__(self, widths, method):
        super().__init__(method.n_clusters, method.latent_dim)
        self.encoders = nn.ModuleList(self._encoder(width, method.latent_dim) for width in widths)
        self.decoders = nn.ModuleList(nn.Linear(method.latent_dim, width) for width in widths)

    def _encoder(self, width, latent):
        if width != 28 * 28:
            return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, latent))
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * 7 * 7, latent),
        )

    def forward(self, values, present):
        codes = torch.stack([encode(x) for encode, x in zip(self.encoders, values, strict=True)], dim=1)
        weights = present[..., None].to(codes.dtype)
        return (codes * weights).sum(dim=1) / weights.sum(dim=1)

    def embed(self, samples, stored):
        return self(samples.values, samples.present)


@dataclass(eq=False, repr=False, kw_only=True)
class ImageCode(PublishedMethod):
    """Reconstruction of all views from one code."""

    latent_dim: int = 8
    epochs: int = 15
    batch_size: int = 20
    learning_rate: float = 1e-2
    name: ClassVar[str] = "image-code"

    def network(self, widths):
        return Encoders(widths, self)

    def schedule(self, training):
        def loss(rows):
            values, present = [training.view(v, rows) for v in range(len(training.values))], training.has(rows)
            code = training.network(values, present)
            errors = [
                ((decode(code) - x) ** 2).mean(dim=1)
                for decode, x in zip(training.network.decoders, values, strict=True)
            ]
            return {"reconstruction": (torch.stack(errors, dim=1) * present).sum(dim=1).mean()}

        return [Stage("reconstruction", self.epochs, self.batch_size, self.learning_rate, loss)]


@pytest.fixture(scope="module")
def images():
    """Three shapes with noise, beside a view of numbers; a third of the samples lacks one of them."""
    rng, groups = np.random.default_rng(0), np.arange(60) % 3
    shapes = np.zeros((3, 28, 28))
    shapes[0, 4:12, 4:24], shapes[1, 4:24, 16:24], shapes[2, 16:24, 4:12] = 1.0, 1.0, 1.0
    pictures = (shapes[groups] + 0.2 * rng.normal(size=(60, 28, 28))).reshape(60, -1)
    numbers = 100 * np.eye(3, 5)[groups] + 20 * rng.normal(size=(60, 5)) + 1000
    pictures[:10], numbers[50:] = np.nan, np.nan
    return {"image": pictures, "numbers": numbers}, groups


@pytest.fixture(scope="module")
def model(images):
    return ImageCode(3, random_state=0).fit(images[0])


def test_it_learns_and_finds_the_shapes(model, images):
    history = model.history_["reconstruction"]
    assert history[-1] < 0.5 * history[0]
    table = np.array([[np.sum((model.labels_ == a) & (images[1] == b)) for b in range(3)] for a in range(3)])
    assert table.max(axis=1).sum() >= 57


def test_a_seed_gives_the_same_network_and_the_global_generator_stays(model, images):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = ImageCode(3, random_state=0).fit(images[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(again.embedding_, model.embedding_)


def test_networks_that_cannot_be_stacked_are_trained_one_after_the_other(model, images):
    from viewfuse import Views

    views = Views(images[0])
    first, second = ImageCode(3).train_many([views, views], [0, 1])
    assert np.array_equal(embeddings(first.network, first.samples), model.embedding_)
    assert not np.array_equal(embeddings(second.network, second.samples), model.embedding_)
    with pytest.raises(ValueError, match="train them one after the other"):
        Training([TrainState(one.network, one.samples, 0) for one in (first, second)])


def test_new_samples_are_placed_and_a_saved_model_places_alike(model, images, tmp_path, monkeypatch):
    pictures = {"image": images[0]["image"][20:25], "numbers": None}
    found = model.predict(pictures)
    assert found.tolist() == model.labels_[20:25].tolist()
    model.save(tmp_path / "model")
    assert ImageCode.load(tmp_path / "model").predict(pictures).tolist() == found.tolist()
    with pytest.raises(Exception, match="image-code"):
        load(tmp_path / "model")  # no entry point names it


def test_a_step_is_that_of_a_plain_loop_in_float64():
    """Batch normalisation, dropout and Adam of torch, with the batches and seeds of the engine, written out."""
    from reference_step import Adam, keys, order

    def made():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()

    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(size=(9, 2)) * [1.0, 30.0] + 5)
    samples = Samples([values], torch.ones(9, 1, dtype=torch.bool), torch.zeros(9, 1, 0, dtype=torch.int64))
    training = Training([TrainState(made(), samples, 7)])

    def loss(rows):
        assert rows.shape == (4,)
        return {"size": training.network(training.view(0, rows)).square().mean()}

    training.run(Stage("only", 2, 4, 0.01, loss, last="drop short", weight_decay=0.1))
    network, totals = made().train(), []
    adam = Adam(network.parameters(), lr=0.01, weight_decay=0.1)
    for epoch in range(2):
        for_draws, for_order = keys(7, epoch)
        rows = order(for_order, 9)
        torch.manual_seed(for_draws % 2**63)
        steps = []
        for start in (0, 4):
            adam.zero_grad()
            total = network(values[rows[start : start + 4]]).square().mean()
            total.backward()
            adam.step()
            steps.append(float(total.detach()))
        totals.append(np.mean(steps))
    assert training.runs[0].history["total"] == pytest.approx(totals, rel=1e-12)
    for own, known in zip(training.network.state_dict().values(), network.state_dict().values(), strict=True):
        torch.testing.assert_close(own, known, rtol=1e-10, atol=1e-12)


def test_a_loss_that_is_not_finite_stops_the_fit(images):
    class Broken(ImageCode):
        name: ClassVar[str] = "broken"

        def schedule(self, training):
            (stage,) = super().schedule(training)
            return [
                Stage(
                    "broken",
                    2,
                    20,
                    0.1,
                    lambda rows: {"reconstruction": stage.loss(rows)["reconstruction"] * torch.inf},
                )
            ]

    with pytest.raises(Diverged, match="the reconstruction loss is not finite in epoch 1, step 1; lower"):
        Broken(3, random_state=0).fit(images[0])


def test_a_method_without_a_schedule_says_where_to_read_how_one_is_written():
    class Unscheduled(ImageCode):
        schedule = PublishedMethod.schedule

    with pytest.raises(NotImplementedError, match="Unscheduled has no schedule; define one"):
        Unscheduled(2, device="cpu").fit([np.random.default_rng(0).normal(size=(12, 3))])
