"""What is decided without labels, written out literally and slowly in float64 numpy, one pair at a time."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering

import reference


def squared(a, b):
    return math.dist(a, b) ** 2


def nearest(points, centers):
    """The first of the nearest centres of each point."""
    return np.array([min(range(len(centers)), key=lambda c: squared(x, centers[c])) for x in points])


def mean_of(points, weights):
    return (points * weights[:, None]).sum(axis=0) / weights.sum()


def lloyd(points, weights, starts, rounds, tolerance):
    """Lloyd's rounds from all starts, which end together; the centres, and the sums of squares around the means."""
    centers, bound = [start.astype(float) for start in starts], tolerance * points.var(axis=0).mean()
    labels = [assigned(points, own) for own in centers]
    for _ in range(rounds):
        moved = [means_of(points, weights, own, old) for own, old in zip(labels, centers, strict=True)]
        far = [float(((new - old) ** 2).sum()) for new, old in zip(moved, centers, strict=True)]
        centers = moved
        if max(far) <= bound:
            break
        labels = [assigned(points, own) for own in centers]
    return centers, [scatter(points, weights, own) for own in labels]


def assigned(points, centers):
    return ((points[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)


def means_of(points, weights, labels, before):
    """The weighted mean of each cluster; an empty one stays where it was."""
    return np.stack(
        [
            mean_of(points[labels == c], weights[labels == c]) if weights[labels == c].sum() > 0 else before[c]
            for c in range(len(before))
        ]
    )


def scatter(points, weights, labels):
    found = 0.0
    for c in set(labels.tolist()):
        own, w = points[labels == c], weights[labels == c]
        found += float((w * ((own - mean_of(own, w)) ** 2).sum(axis=1)).sum()) if w.sum() > 0 else 0.0
    return found


def drawn_centers(points, weights, k, state, n_starts=20):
    """Greedy k-means++: of a few candidates, each the winner of a race, the one that leaves the least is taken."""
    n, tries = len(points), 2 + int(math.log(k))
    chosen, far = [[] for _ in range(n_starts)], np.full((n_starts, n), np.inf)
    for number in range(k):
        times = state.standard_exponential((n_starts, tries, n))
        for s in range(n_starts):
            chances = weights * (far[s] if number else 1.0)
            rows = [int((chances / times[s, t]).argmax()) for t in range(tries)]
            left = [np.array([min(far[s, i], squared(points[i], points[row])) for i in range(n)]) for row in rows]
            best = min(range(tries), key=lambda t: float((left[t] * weights).sum()))
            chosen[s].append(points[rows[best]])
            far[s] = left[best]
    return np.array(chosen)


def micro_clusters(points, n_groups, state):
    """Means of the points around some of them, drawn without replacement, and how many there are."""
    chosen = sorted(state.choice(len(points), min(n_groups, len(points)), replace=False))
    labels = nearest(points, points[chosen])
    groups = [points[labels == g] for g in range(len(chosen)) if (labels == g).any()]
    return np.stack([own.mean(axis=0) for own in groups]), np.array([float(len(own)) for own in groups])


def ward(points, k):
    labels = AgglomerativeClustering(k, linkage="ward").fit_predict(points)
    return np.stack([points[labels == c].mean(axis=0) for c in range(k)])


def in_order(centers, points):
    labels = nearest(points, centers).tolist()
    return centers[sorted(range(len(centers)), key=lambda c: labels.index(c) if c in labels else len(labels))]


def initial_centers(points, k, seed, neighbor_ids, *, ward_rows, groups, rounds=100, last_rounds=20):
    """The start of the centres as README and docstrings tell it."""
    state = np.random.RandomState(np.random.SeedSequence([seed, 0, 1]).generate_state(1)[0])
    few, weights = points, np.ones(len(points))
    if len(points) > ward_rows:
        few, weights = micro_clusters(points, max(groups, 5 * k), state)
    if k == 1:
        return mean_of(few, weights)[None]
    starts = np.concatenate([ward(few, k)[None], drawn_centers(few, weights, k, state)])
    found, squares = lloyd(few, weights, starts, rounds, 1e-4)
    labels = [nearest(points, own).tolist() for own in found]
    known = {}  # several starts end in the same clusters
    for own in labels:
        if str(own) not in known:
            known[str(own)] = 0.0 if neighbor_ids is None else macro(own, neighbor_ids, k)
    best = found[best_start([known[str(own)] for own in labels], squares)]
    if len(few) < len(points):
        best = lloyd(points, np.ones(len(points)), [best], last_rounds, 1e-4)[0][0]
    return in_order(best, few)


def best_start(scores, squares):
    """The highest score of the least squares, unless with another a quarter fewer leave their cluster: by exp(0.3)."""
    least = [i for i in range(len(squares)) if squares[i] <= 1.001 * min(squares)]
    best = min(least, key=lambda i: (-round(scores[i], 9), squares[i]))
    better = [i for i in range(len(scores)) if (1 - scores[best]) > math.exp(0.3) * (1 - scores[i])]
    return min([best, *better], key=lambda i: (-round(scores[i], 9), squares[i]))


def near(neighbor_ids, v):
    """Per sample the neighbours in a view that count."""
    return [[j for j in own[v][:9] if j >= 0] for own in neighbor_ids.tolist()]


def shared(neighbor_ids, v, u, rows=None):
    """Which share of the neighbours in one view are neighbours in the other, among those that have both."""
    first, second = near(neighbor_ids, v), near(neighbor_ids, u)
    both = [i for i in (range(len(first)) if rows is None else rows) if first[i] and second[i]]
    mine = [(i, j) for i in both for j in first[i] if second[j]]
    theirs = [(i, j) for i in both for j in second[i] if first[j]]
    # A neighbour may be listed twice, and then counts twice.
    return 1.0 if u == v else sum(theirs.count(a) for a in mine) / max(1, min(len(mine), len(theirs)))


def view_weights(neighbor_ids, rows=None):
    views = range(neighbor_ids.shape[1])
    return [1 / sum(shared(neighbor_ids, v, u, rows) ** 2 for u in views) for v in views]


def kappa(labels, neighbor_ids, v):
    """The agreement in one view; None where it says nothing."""
    lists = near(neighbor_ids, v)
    members = [i for i in range(len(labels)) if lists[i]]
    strangers = [labels[i] == labels[j] for i in members for j in members if i != j]
    if not strangers or all(strangers):
        return None
    pairs = [labels[i] == labels[j] for i in range(len(labels)) for j in lists[i]]
    share, chance = sum(pairs) / len(pairs), sum(strangers) / len(strangers)
    return (share - chance) / (1 - chance)


def weighted(scores, weights):
    known = [(s, w) for s, w in zip(scores, weights, strict=True) if s is not None]
    return sum(s * w for s, w in known) / sum(w for _, w in known) if known else 0.0


def agreement(labels, neighbor_ids):
    """The neighbour agreement, one pair at a time."""
    found = [kappa(labels, neighbor_ids, v) for v in range(neighbor_ids.shape[1])]
    return weighted(found, view_weights(neighbor_ids))


def kept_by(labels, neighbor_ids, v, c):
    """What the members of a cluster keep of their neighbours in a view; None where that tells nothing."""
    lists = near(neighbor_ids, v)
    members = [i for i, own in enumerate(lists) if own]
    own = [i for i in members if labels[i] == c]
    if not own or len(own) == len(members):
        return None
    pairs = [labels[j] == c for i in own for j in lists[i]]
    share, n = sum(pairs) / len(pairs), len(own)
    bound = (share + 1 / (2 * n) - math.sqrt(share * (1 - share) / n + 1 / (4 * n * n))) / (1 + 1 / n)
    chance = (n - 1) / (len(members) - 1)
    return (bound - chance) / (1 - chance)


def view_macro(labels, neighbor_ids, v, k):
    """The mean over clusters of what their members keep of their neighbours; None where a view tells nothing."""
    if len({labels[i] for i, own in enumerate(near(neighbor_ids, v)) if own}) < 2:
        return None
    found = []
    for c in range(k):
        by_view = [kept_by(labels, neighbor_ids, other, c) for other in range(neighbor_ids.shape[1])]
        known = [one for one in by_view if one is not None]
        if by_view[v] is not None:
            found.append(by_view[v])
        elif known:
            found.append(sum(known) / len(known))  # it has samples, but none that has the view
        elif c not in labels:
            found.append(0.0)
    return sum(found) / len(found)


def macro(labels, neighbor_ids, k):
    found = [view_macro(labels, neighbor_ids, v, k) for v in range(neighbor_ids.shape[1])]
    return weighted(found, view_weights(neighbor_ids))


def information(labels, neighbor_ids):
    """Mutual information of the clusters of two neighbours, from the entropies of one and of both, in nats."""

    def entropy_of(things):
        return -sum(things.count(one) / len(things) * math.log(things.count(one) / len(things)) for one in set(things))

    found = []
    for v in range(neighbor_ids.shape[1]):
        pairs = [(labels[i], labels[j]) for i, own in enumerate(near(neighbor_ids, v)) for j in own]
        pairs += [pair[::-1] for pair in pairs]
        found.append(2 * entropy_of([a for a, _ in pairs]) - entropy_of(pairs) if pairs else 0.0)
    return weighted(found, view_weights(neighbor_ids))


def macro_over(labels, graphs, k):
    """The score over the neighbours of several scalings: those that give a view the same ones count once there."""
    scores = []
    for v in range(graphs[0].shape[1]):
        different = list({str(ids[:, v].tolist()): ids for ids in reversed(graphs)}.values())  # the first of equals
        found = [view_macro(labels, ids, v, k) for ids in different]
        scores.append(None if None in found else sum(found) / len(found))
    weights = [view_weights(ids) for ids in graphs]
    return weighted(scores, [sum(own) / len(own) for own in zip(*weights, strict=True)])


def principal(table, most=24):
    """Principal components, whose signs are anybody's, with a mean square length of 1."""
    rows = table - table.mean(axis=0)
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    found = (left * sizes)[:, :most]
    return found / math.sqrt((found**2).sum() / len(found))


def partitions(points, ks, generator):
    """Of four k-means solutions for each number of clusters that with the least squares."""
    weights = np.ones(len(points))
    state = np.random.RandomState(int(torch.randint(2**31, (), generator=generator)))
    starts, labels = drawn_centers(points, weights, max(ks), state, 4), []
    for k in ks:
        centers, squares = lloyd(points, weights, starts[:, :k], 24, 1e-4)
        labels.append(nearest(points, centers[int(np.argmin(squares))]))
    return labels


def filled_table(values, mask, n_donors=5, depth=10):
    """All views side by side; a missing one is the mean of its donors, or of all samples that have it."""
    rows = []
    for i in range(len(mask)):
        blocks = []
        for v, view in enumerate(values):
            donors = [] if mask[i, v] else reference.knn_list(values, mask, mask[i], i, v, n_donors, depth)
            others = donors or [j for j in range(len(mask)) if mask[j, v]]
            blocks.append(view[i] if mask[i, v] else np.mean([view[j].astype(float) for j in others], axis=0))
        rows.append(np.concatenate(blocks))
    return np.stack(rows)
