"""Beam search over one request: which continuations live on, which are answers, and when it is over.

Every step offers, for each beam, the likeliest `2 * width` tokens after it. Continuations by an end token are answers;
of the others the `width` with the highest sum of log-probabilities are the next beams. An answer's score is that sum
over `max(1, its tokens without the end token) ** length_penalty` (Wu et al., "Google's neural machine translation
system", 2016, in the simple form that transformers has). The search is over when no beam can still beat the `width`
best answers, with `early_stopping` as soon as there are so many, or at the sequence's limit, where beams are answers.

Keeping all answers of all steps and searching to the limit, as vLLM does, finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish

#: A log-probability below is that of a token that was masked.
LEAST_LOGPROB = -1e30


@dataclass(frozen=True, slots=True)
class Offer:
    """What may follow a beam: token ids by likelihood, and their log-probabilities; of these the first 2 * width are
    looked at, the others were asked for by the client. drawn: what the sampler took."""

    drawn: int
    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Link:
    """A beam as its last token and the beam before it. None of them ever changes, so beams share their beginnings."""

    token: int
    logprob: float
    total: float
    length: int
    offer: Offer
    before: Link | None

    def tokens(self) -> list[Link]:
        """From the first token on."""
        found: list[Link] = []
        link: Link | None = self
        while link is not None:
            found.append(link)
            link = link.before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    score: float
    link: Link
    finish: Finish


@dataclass(slots=True)
class BeamSearch:
    """The state of one search. limit: most tokens of an answer. answers: the best so far, at most `width`.

    beams: how many live on: `width`, unless the pool is too small for so many sequences.
    """

    params: SamplingParams
    limit: int
    end_ids: frozenset[int]
    beams: int
    answers: list[Hypothesis] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.params.width

    def advance(self, beams: Sequence[Link | None], offers: Sequence[Offer]) -> list[tuple[int, Link]]:
        """The next beams, best first, as (index of the beam continued, its new end); none when the search is over.

        A beam None has no token yet. Ties go to the earlier beam, then to the likelier token.
        """
        found: list[tuple[int, Link]] = []
        for index, (beam, offer) in enumerate(zip(beams, offers, strict=True)):
            for token, logprob in islice(zip(offer.ids, offer.logprobs, strict=True), 2 * self.width):
                if token < 0 or logprob < LEAST_LOGPROB:
                    continue
                total, length = (beam.total, beam.length) if beam else (0.0, 0)
                link = Link(token, logprob, total + logprob, length + 1, offer, beam)
                if token in self.end_ids:
                    self._answer(link, Finish.STOP)
                else:
                    found.append((index, link))
        found.sort(key=lambda child: -child[1].total)  # stable
        if found and found[0][1].length >= self.limit:
            for _, link in found[: self.width]:
                self._answer(link, Finish.LENGTH)
            return []
        return [] if found and self._is_decided(found[0][1]) else found[: self.beams]

    def _answer(self, link: Link, finish: Finish) -> None:
        length = link.length - (finish == Finish.STOP)
        self.answers.append(Hypothesis(self._score(link.total, length), link, finish))
        self.answers.sort(key=lambda answer: -answer.score)  # stable: earlier ones win ties
        del self.answers[self.width :]

    def _score(self, total: float, length: int) -> float:
        score: float = total / max(1, length) ** self.params.length_penalty
        return score

    def _is_decided(self, best: Link) -> bool:
        """No continuation of the best beam, and so of no other, can become one of the answers.

        A sum only falls. With a positive penalty the most it can make of itself is to be as long as possible.
        """
        if len(self.answers) < self.width:
            return False
        length = self.limit if self.params.length_penalty > 0 else best.length
        return self.params.early_stopping or self.answers[-1].score >= self._score(best.total, length)


@dataclass(slots=True)
class Beams:
    """A request that searches: the end of each of its sequences, by choice, and the offers of those that have one.

    Choices number the sequences in the order in which they came to be; the answers have numbers of their own.
    """

    search: BeamSearch
    ends: dict[int, Link | None]
    offers: dict[int, Offer] = field(default_factory=dict)
    last_choice: int = 0
