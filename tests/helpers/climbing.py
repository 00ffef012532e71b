"""Hill climbing over the bits of expansions: inputs that an adversary finds and chance does not.

A population of hard inputs is mutated (`mutation`), and of parents and children the worst stay.
What an input is worth is a function's affair: `arithmetic_search` and `function_search` climb on
the part of its bound that an error is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tests.helpers.mutation import Array, Inputs, Space, mutated


@dataclasses.dataclass(frozen=True)
class Found:
    """The worst input of a search.

    Args:
        score: its fitness.
        arguments: its components, largest first, of each argument.
        generation: in which it was met.
    """

    score: float
    arguments: list[list[float]]
    generation: int


def the_worst(kept: int = 2000) -> Callable[[Inputs, Array], Array]:
    """Keeps so many."""
    return lambda inputs, score: np.argsort(-score, kind="stable")[:kept]


def worst_of_each_exponent(kept: int = 500, of_each: int = 4) -> Callable[[Inputs, Array], Array]:
    """Keeps so many, and some of every leading exponent; no input twice."""

    def choose(inputs: Inputs, score: Array) -> Array:
        order = np.argsort(-score, kind="stable")
        _, first = np.unique(np.concatenate(inputs)[:, order], axis=1, return_index=True)
        order = order[np.sort(first)]
        exponents = np.frexp(inputs[0][0][order])[1]
        by = np.argsort(exponents, kind="stable")
        _, start, counts = np.unique(exponents[by], return_index=True, return_counts=True)
        rank = np.arange(len(by)) - np.repeat(start, counts)
        few = by[(rank < of_each) & (score[order][by] > 0)]
        return order[np.union1d(np.arange(min(kept, len(order))), few[few < 8 * kept])]

    return choose


class Climb:
    """A population that gets worse from generation to generation.

    Args:
        space: which inputs there are.
        start: the first population.
        fitness: of each input; -inf or NaN where it has none.
        seed: of all choices.
        children: in each generation.
        keep: chooses whom to mutate, the worst first: the columns of inputs with their fitness.
        fresh: inputs of no parents in place of every eighth generation, by its number.
    """

    def __init__(
        self,
        space: Space,
        start: Inputs,
        fitness: Callable[[Inputs], Array],
        *,
        seed: int,
        children: int = 8000,
        keep: Callable[[Inputs, Array], Array] | None = None,
        fresh: Callable[[int], Inputs] | None = None,
    ) -> None:
        self.space, self.fitness, self.children = space, fitness, children
        self.keep, self.fresh = keep or the_worst(), fresh
        self.rng = np.random.default_rng(seed)
        self.generation = 0
        self.population = space.repaired(start)
        self.score = _clean(fitness(self.population))
        self.born = np.zeros(len(self.score), np.int64)

    def step(self) -> None:
        """One generation."""
        self.generation += 1
        order = self.keep(self.population, self.score)
        self.population = [x[:, order] for x in self.population]
        self.score, self.born = self.score[order], self.born[order]
        if self.fresh and self.generation % 8 == 0:
            new = self.space.repaired(self.fresh(self.generation))
        else:
            # The worse half of the choices falls on the worst quarter.
            one, two = self.rng.integers(0, len(order), (2, self.children))
            parents = np.where(one & 1, one, one // 4)
            mates = [x[:, two] for x in self.population]
            new = mutated(self.space, [x[:, parents] for x in self.population], mates, self.rng)
        self.population = [
            np.concatenate(p, axis=1) for p in zip(self.population, new, strict=True)
        ]
        self.score = np.concatenate([self.score, _clean(self.fitness(new))])
        self.born = np.concatenate([self.born, np.full(new[0].shape[1], self.generation)])

    def run(self, generations: int) -> Found:
        """So many generations, and what is worst after them."""
        for _ in range(generations):
            self.step()
        return self.found()

    def found(self) -> Found:
        """The worst input so far."""
        at = int(np.argmax(self.score))
        arguments = [[float(v) for v in x[:, at]] for x in self.population]
        return Found(float(self.score[at]), arguments, int(self.born[at]))


def _clean(score: Array) -> Array:
    return np.where(np.isnan(score), -np.inf, score)
