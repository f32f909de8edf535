"""Blocks and encoders against plain numpy, in float64, with random masks and sizes."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from test_neighbors import incomplete_data
from training_tools import drawn, index_samples
from viewfuse.errors import SettingError
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import plain_batch
from viewfuse.methods.urrl.network import (
    Batch,
    Mask,
    Network,
    OutputChoice,
    TransformerBlock,
    adaptive_mask,
    attend,
    build_network,
    cosine_distances,
)


def network_for(values, settings, seed=0) -> Network:
    widths = [view.shape[1] for view in values]
    return build_network(widths, settings, torch.Generator().manual_seed(seed)).double()


def double_batch(values, mask, settings) -> Batch:
    tensors = [torch.from_numpy(view).double() for view in values]
    stored = index_samples(tensors, torch.from_numpy(mask), settings)
    return plain_batch(stored, stored, settings)


def pick(batch: Batch, rows) -> Batch:
    return Batch([t[rows] for t in batch.tokens], batch.valid[rows], batch.available[rows])


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_attention_is_its_equation(n_queries, n_keys, seed):
    rng = np.random.default_rng(seed)
    query, key, value = (rng.normal(size=(n, 3)) for n in (n_queries, n_keys, n_keys))
    bias = rng.choice([0.0, -0.5, -2.0, -10.0, -np.inf], size=n_keys)
    tensors = [torch.from_numpy(x)[None, None] for x in (query, key, value)]
    found = attend(*tensors, Mask.of(torch.from_numpy(bias)[None]))
    assert found[0, 0].numpy() == pytest.approx(reference.attention(query, key, value, bias), abs=1e-12)


@pytest.mark.parametrize("gamma", [-0.5, -2.0, -10.0, -np.inf])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_block_with_a_soft_mask_is_plain_arithmetic(gamma, training, n_heads):
    block = drawn(TransformerBlock(8, n_heads, 16)).double().train(training)
    tokens = torch.randn(3, 4, 8, dtype=torch.float64)
    bias = torch.tensor([[0, gamma, 0, -np.inf], [gamma] * 4, [-np.inf] * 4], dtype=torch.float64)
    found = block(tokens, Mask.of(bias)).detach().numpy()
    for b in range(3):
        expected = reference.transformer(block, tokens[b].numpy(), bias[b].numpy())
        assert np.abs(found[b] - expected).max() <= 1e-6


def test_fully_masked_rows_have_finite_outputs_and_gradients():
    block = drawn(TransformerBlock(8, 1, 16))
    tokens = torch.randn(2, 3, 8, requires_grad=True)
    block(tokens, Mask.of(torch.full((2, 3), -torch.inf))).sum().backward()
    assert torch.isfinite(tokens.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters() if p.grad is not None)


def test_only_the_asked_outputs_are_computed_and_they_are_the_same():
    block = drawn(TransformerBlock(8, 2, 16)).double()
    tokens, mask = torch.randn(5, 4, 8, dtype=torch.float64), Mask.of(torch.zeros(5, 4, dtype=torch.float64))
    assert torch.allclose(block(tokens, mask, slice(0, 1)), block(tokens, mask)[:, :1], atol=1e-12)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_cosine_distances(k, width, seed):
    block = np.random.default_rng(seed).normal(size=(k, width))
    block[k // 2 :] *= seed % 2  # sometimes half of the list is padding
    found = cosine_distances(torch.from_numpy(block)[None])[0].numpy()
    assert found == pytest.approx(reference.cdpe(block)[:, width:], abs=1e-12)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_adaptive_mask(n_views, k, seed):
    rng = np.random.default_rng(seed)
    valid, available = rng.random((1, n_views, k)) < 0.3, rng.random((1, n_views)) < 0.5
    tensors = torch.from_numpy(valid), torch.from_numpy(available)
    three = adaptive_mask(*tensors, Config(imputed_bias=-7.0))[0].numpy()
    assert (three == reference.tam(valid[0], available[0], -7.0)).all()
    two = adaptive_mask(*tensors, Config(three_level_mask=False))[0].numpy()
    assert (two == reference.tam(valid[0], available[0], 0.0)).all()


@given(incomplete_data(max_rows=8), st.integers(1, 9))
def test_embedding_is_that_of_the_paper(data, k):
    values, mask, _ = data
    settings = Config(n_neighbors=k, embedding_dim=8, hidden_dim=6, n_heads=2)
    network = network_for(values, settings)
    found = network.encode(double_batch(values, mask, settings)).detach().numpy()
    for i in range(len(mask)):
        tokens, valid = reference.knn_imputation(values, mask, mask[i], i, k, settings.donor_depth)
        expected = reference.encode(network, tokens, valid, mask[i], settings.imputed_bias)
        assert np.abs(found[i] - expected).max() <= 1e-6


def test_decoder_has_four_layers_per_view():
    settings = Config(embedding_dim=8, hidden_dim=6)
    network = network_for([np.zeros((1, 3)), np.zeros((1, 5))], settings)
    z = np.random.default_rng(0).normal(size=(4, 8))
    for decoder, rebuilt in zip(network.decoders, network.decode(torch.from_numpy(z)), strict=True):
        assert sum(isinstance(layer, torch.nn.Linear) for layer in decoder) == 4
        assert rebuilt.detach().numpy() == pytest.approx(reference.fully_connected(decoder, z))


@hypothesis.settings(max_examples=10)
@given(incomplete_data(max_rows=8), st.sampled_from([-0.5, -10.0, -np.inf]))
def test_training_mode_company_and_order_change_nothing(data, gamma):
    values, mask, rng = data
    settings = Config(embedding_dim=8, hidden_dim=6, n_heads=2, imputed_bias=gamma)
    network = network_for(values, settings)
    batch = double_batch(values, mask, settings)
    together = network.train().encode(batch)
    alone = torch.cat([network.eval().encode(pick(batch, slice(i, i + 1))) for i in range(len(mask))])
    order = torch.from_numpy(rng.permutation(len(mask)))
    shuffled = network.encode(pick(batch, order))
    assert torch.isfinite(together).all()
    assert (together - alone).abs().max() <= 1e-6
    assert (together[order] - shuffled).abs().max() <= 1e-6


@hypothesis.settings(max_examples=10)
@given(incomplete_data())
def test_the_order_of_views_changes_nothing_in_the_network(data):
    values, mask, rng = data
    settings = Config(embedding_dim=8, hidden_dim=6, n_heads=2)
    network = network_for(values, settings)
    batch = double_batch(values, mask, settings)
    before = network.encode(batch)
    order = rng.permutation(mask.shape[1]).tolist()
    network.neighbor_encoders = torch.nn.ModuleList(network.neighbor_encoders[v] for v in order)
    network.view_encoder.embed = torch.nn.ModuleList(network.view_encoder.embed[v] for v in order)
    after = network.encode(Batch([batch.tokens[v] for v in order], batch.valid[:, order], batch.available[:, order]))
    assert (before - after).abs().max() <= 1e-6


@pytest.mark.parametrize("choice", ["first", "second", "third", "mean", "concat"])
@pytest.mark.parametrize("field", ["neighbor_output", "view_output"])
def test_output_choices(choice, field):
    settings = Config(**{field: choice}, n_neighbors=3, embedding_dim=8, hidden_dim=6, n_heads=2)
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(7, width)).astype(np.float32) for width in (2, 4, 3)]
    network = network_for(values, settings)
    batch = double_batch(values, np.ones((7, 3), dtype=bool), settings)
    encoder = network.view_encoder if field == "view_output" else network.neighbor_encoders[1]
    seen = {}
    encoder.block.register_forward_hook(lambda _, given, out: seen.update(tokens=given[0], mask=given[1], out=out))
    result = {}
    encoder.register_forward_hook(lambda _, given, out: result.update(out=out))
    network.encode(batch)
    every = encoder.block(seen["tokens"], seen["mask"])
    expected = {"first": every[:, 0], "second": every[:, 1], "third": every[:, 2], "mean": every.mean(dim=1)}
    if choice == "concat":
        expected["concat"] = encoder.output.linear(every.flatten(1))
    assert torch.allclose(result["out"], expected[choice], atol=1e-10)


def test_a_token_that_does_not_exist_cannot_be_the_output():
    with pytest.raises(SettingError, match="no fourth output: the Transformer has 2 token"):
        network_for([np.zeros((1, 3))] * 2, Config(view_output="fourth"))


def test_without_the_distance_code_the_width_is_that_of_the_view():
    network = network_for([np.zeros((1, 3))], Config(distance_code=False))
    assert network.neighbor_encoders[0].block.query.in_features == 3
    assert network_for([np.zeros((1, 3))], Config(n_neighbors=4)).neighbor_encoders[0].block.query.in_features == 7


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two = (network_for([np.zeros((1, 3))], Config(), seed=s) for s in (1, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(
        one.decoders[0][0].weight, network_for([np.zeros((1, 3))], Config(), seed=2).decoders[0][0].weight
    )


def test_weights_start_as_the_table_says():
    network = build_network((30, 50), Config(embedding_dim=64, hidden_dim=48), torch.Generator().manual_seed(0))
    for module in network.modules():
        if isinstance(module, torch.nn.Linear):
            bound = module.in_features**-0.5
            assert 0.98 * bound < float(module.weight.detach().abs().max()) <= bound
            assert 0.8 * bound < float(module.bias.detach().abs().max()) <= bound
        elif isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
        elif isinstance(module, torch.nn.PReLU):
            assert module.weight.tolist() == [0.25]
    assert (network.centers == 0).all()


def test_the_layers_are_those_that_are_written_down():
    config = Config(n_clusters=3, n_neighbors=2, embedding_dim=8, hidden_dim=5, n_heads=4, feedforward_ratio=3)
    network = build_network([6, 4], config, torch.Generator().manual_seed(0))

    def written(layers):
        return [(one.in_features, one.out_features) if hasattr(one, "in_features") else "PReLU" for one in layers]

    assert [encoder.block.n_heads for encoder in network.neighbor_encoders] == [1, 1]
    assert network.view_encoder.block.n_heads == 4
    for v, width in enumerate((6, 4)):
        before = written(network.view_encoder.embed[v])  # two distances stand beside the columns
        assert before == [(width + 2, 5), "PReLU", (5, 5), "PReLU", (5, 8)]
        after = written(network.decoders[v])
        assert after == [(8, 5), "PReLU", (5, 5), "PReLU", (5, 5), "PReLU", (5, width)]
    inner = [network.neighbor_encoders[0].block, network.neighbor_encoders[1].block, network.view_encoder.block]
    assert [block.feedforward[0].out_features for block in inner] == [24, 18, 24]
    assert network.centers.shape == (3, 8)
    assert (network.view_encoder.output.choice, network.neighbor_encoders[0].output.choice) == ("mean", "first")


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("choice", ["first", "second", "mean"])
def test_outputs_are_one_or_their_mean_however_many_samples_there_are(choice, batch):
    tokens = torch.arange(batch * 3 * 4.0).reshape(batch, 3, 4) ** 2
    chosen = OutputChoice(choice, 3, 4)
    found = chosen(tokens[:, chosen.tokens])
    literal = {"first": tokens[:, 0], "second": tokens[:, 1], "mean": (tokens[:, 0] + tokens[:, 1] + tokens[:, 2]) / 3}
    assert torch.allclose(found, literal[choice])
    assert found.shape == (batch, 4)
