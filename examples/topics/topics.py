"""Topics of texts: CNS as the clustering step of BERTopic and of Toponymy.

    python examples/topics/topics.py

Texts are made up, and their embeddings are those of scikit-learn (TF-IDF and SVD): nothing is downloaded. Embeddings of
a language model go the same way. What is not installed is left out: pip install bertopic toponymy
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from cns_dask import CNS

WORDS = {
    "cooking": "oven pan recipe butter flour soup knife salt onion bake",
    "baking": "oven recipe butter flour sugar dough bread yeast cake bake",
    "space": "orbit rocket moon planet launch comet star telescope crew capsule",
    "football": "goal match team league score referee ball coach season stadium",
    "law": "court judge appeal statute verdict clause lawyer witness trial evidence",
}


def made_up_texts(n_texts: int = 1500, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts of five topics, two of which share words; and the topic of each."""
    rng = np.random.default_rng(seed)
    words = [line.split() for line in WORDS.values()]
    topics = rng.integers(len(words), size=n_texts)
    return [" ".join(rng.choice(words[topic], 12)) for topic in topics], topics


def embedded(texts: list[str]) -> np.ndarray:
    """Embeddings (n, 12) of texts."""
    return TruncatedSVD(12, random_state=0).fit_transform(TfidfVectorizer().fit_transform(texts))


def with_bertopic(texts: list[str], embeddings: np.ndarray) -> list[int]:
    """Topics by BERTopic: `CNS` is its `hdbscan_model`. It needs no reduction to five dimensions first."""
    from bertopic import BERTopic
    from bertopic.dimensionality import BaseDimensionalityReduction

    model = BERTopic(
        embedding_model=None,
        umap_model=BaseDimensionalityReduction(),
        hdbscan_model=CNS(metric="cosine", scale=False),
    )
    topics, probabilities = model.fit_transform(texts, embeddings=embeddings)
    print(f"\nBERTopic, mean probability {np.mean(probabilities):.2f}:")
    print(model.get_topic_info()[["Topic", "Count", "Name"]].to_string(index=False))
    again, _ = model.transform(texts[:100], embeddings=embeddings[:100])
    print(f"{np.mean(np.equal(again, topics[:100])):.0%} of 100 texts get the same topic as new ones")
    return list(topics)


def with_toponymy(embeddings: np.ndarray) -> tuple[list[Any], dict[Any, Any]]:
    """Layers for Toponymy, which then lets a language model name them."""
    from toponymy.cluster_layer import ClusterLayerText
    from toponymy.clustering import Clusterer, centroids_from_labels

    class CNSClusterer(Clusterer):
        """Use it as `Toponymy(..., clusterer=CNSClusterer(CNS(metric="cosine")))`."""

        def __init__(self, model: CNS) -> None:
            super().__init__()
            self.model = model

        def fit(self, clusterable_vectors, embedding_vectors, layer_class=ClusterLayerText, **options):  # type: ignore[no-untyped-def]
            self.model.fit(clusterable_vectors)
            self.cluster_tree_ = self.model.cluster_tree_
            self.cluster_layers_ = [
                layer_class(labels, centroids_from_labels(labels, embedding_vectors), layer_id=number, **options)
                for number, labels in enumerate(self.model.cluster_layers_)
            ]
            return self

        def fit_predict(self, *vectors, **options):  # type: ignore[no-untyped-def]
            self.fit(*vectors, **options)
            return self.cluster_layers_, self.cluster_tree_

    layers, tree = CNSClusterer(CNS(metric="cosine", scale=False)).fit_predict(embeddings, embeddings)
    sizes = [len(layer.centroid_vectors) for layer in layers]
    print(f"\nToponymy: layers of {' and '.join(map(str, sizes))} clusters; tree: {tree}")
    return layers, tree


def main() -> None:
    texts, _ = made_up_texts()
    embeddings = embedded(texts)
    model = CNS(metric="cosine", scale=False).fit(embeddings)
    print(model.result_.verdict.sentence)
    for labels in model.cluster_layers_:
        print(f"layer of {labels.max() + 1} clusters:")
        for cluster in range(labels.max() + 1):
            words = " ".join(text for text, label in zip(texts, labels, strict=True) if label == cluster).split()
            names, counts = np.unique(words, return_counts=True)
            print(f"  {cluster}: {', '.join(names[np.argsort(-counts, kind='stable')[:5]])}")
    if find_spec("bertopic"):
        with_bertopic(texts, embeddings)
    if find_spec("toponymy"):
        with_toponymy(embeddings)


if __name__ == "__main__":
    main()
