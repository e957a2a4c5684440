"""Evidence class of a job: how close it is to the measured rows behind its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from wattree.accounts import constant_classes as names
from wattree.cost import AUTO_SOFTWARE, FoundConstant, Residuals
from wattree.cost.calibration import LOOPS, has_rows
from wattree.lowering.assumed import HOOKS

#: Levels of a device's constants, nearest first.
LEVELS = ("device", "die", "architecture", "pooled")
#: Models of one family share a vocabulary, but for padding: it tells families apart where jobs name
#: none. Largest relative difference of one vocabulary.
_PADDING = 0.05
#: A job up to this many times as large as any measured one is within their sizes.
_WITHIN = 1.5
#: What a group of models has rows of, as a calibration keeps it.
ROWS = ("software", "vendors", "devices", "forms", "models", "largest")
#: The family that stands for unknown software.
GENERIC = "generic"
#: What is known of software, most first.
SOFTWARE = ("measured", "unmeasured", GENERIC)
#: Lower bound of the error of one step predicted from another: runs vary, and models have errors.
_LEAST_NOISE = 0.01


def level_name(group: str, level: str | None) -> str:
    """Return the name of the spread that a level of the look-up adds to constants of a group."""
    return f"step_time_s.{group}.level.{level}"


def group_of(kind: str) -> str:
    """Return the group of a kind of models: constants of `language` and `network` differ."""
    return "network" if kind == "network" else "language"


#: Spreads of the step time by options left open (chosen; recomputation costs some a third), and of
#: `general.expert_fetch_s`, on which such steps rest.
_LEFT_OPEN_SPREADS = {"recompute": 0.08, "sharding": 0.03, "sequence_parallel": 0.02, HOOKS: 0.4}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceClass:
    """Evidence available for jobs like this one.

    Attributes:
        kind: `language`, `experts` or `network`.
        level: At which the look-up found the rates that most of the step rests on.
        software: `measured`; `unmeasured`, a family without rows; or `generic`, none that is known
            or none that the job names, or on devices of a vendor without rows, which have libraries
            of their own.
        model: `known` if a model of its kind and vocabulary has rows, else `new`.
        form: `known` if jobs of its form have rows, else `new` (see `JobFacts`).
        scripted: Its users write the loop (`Software.scripted`), or the network.
        size: `within` that of measured jobs, or `beyond`, in devices.
        observed: Whether the constants rest on the user's own runs of such jobs.
    """

    kind: str
    level: str
    software: str
    model: str = "known"
    form: str = "known"
    size: str = "within"
    scripted: bool = False
    observed: bool = False

    @property
    def label(self) -> str:
        """All in words, what is usual left out."""
        words = [self.kind, self.level, self.software]
        words += ["new model"] if self.model == "new" else []
        words += ["script"] if self.scripted else []
        words += ["new form"] if self.form == "new" else []
        words += ["larger"] if self.size == "beyond" else []
        words += ["own runs"] if self.observed else []
        return ", ".join(words)

    def residual(self, spreads: Mapping[str, float]) -> float:
        """Return the spread of what constants leave of the errors of such step times."""
        return math.hypot(*(spreads.get(name, 0.0) for name in self.classes.values()))

    @property
    def classes(self) -> dict[str, str]:
        """The classes of evidence that add to the residual, each with the name of its spread."""
        group = group_of(self.kind)
        return {
            "kind": f"step_time_s.kind.{self.kind}",
            "software": f"step_time_s.{group}.software.{self.software}",
            "model": f"step_time_s.{self.kind}.model.{self.model}",
            "form": f"step_time_s.{group}.form.{self.form}",
            "size": f"step_time_s.{group}.size.{self.size}",
        }

    @property
    def slower_class(self) -> str:
        """The name of the spread by which steps may be slower, on top of `residual`."""
        known = "released" if self.software != GENERIC else GENERIC
        loop = "script" if self.scripted else known
        return f"step_time_s.{group_of(self.kind)}.slower.{loop}"

    def slower(self, spreads: Mapping[str, float]) -> float:
        """Return the spread of what steps of others lose that no prediction has.

        Loaders, logs, waiting and older releases make them slower more often than faster.
        """
        return spreads.get(self.slower_class, 0.0)

    def noise(self, spreads: Mapping[str, float]) -> float:
        """Return the error of one run predicted from another, apart from their common constants.

        Where no rows were anchored by each other, all that constants leave counts as such.
        """
        whole = spreads.get(f"step_time_s.kind.{self.kind}", _LEAST_NOISE)
        return max(spreads.get(f"step_time_s.observed.{self.kind}", whole), _LEAST_NOISE)

    def observation_noise(self, spreads: Mapping[str, float]) -> float:
        """Return the part of one run's error that does not correct other runs.

        It is larger than `noise`: priors overstate how much errors of one group have in common.
        """
        fitted = spreads.get(f"step_time_s.observation.{self.kind}", 0.0)
        return max(fitted, self.noise(spreads))

    def alike(self, spreads: Mapping[str, float]) -> float:
        """Return the part of the residual by which such predictions err alike.

        Noise is in what every prediction of the kind leaves, not in what is added where less is
        known: software, models, forms and sizes are those of all such runs. What they lose is that
        of one user's in part: most of it is each run's own (`benchmarks.alike`).
        """
        kind, group = spreads.get(self.classes["kind"], 0.0), group_of(self.kind)
        released = spreads.get(f"step_time_s.{group}.slower.{LOOPS[0]}", 0.0)
        # On one side of two; what scripts lose beyond released loops is in no class of a trace.
        slower = min(self.slower(spreads), released) / math.sqrt(2.0)
        slower = min(slower, spreads.get(f"step_time_s.{group}.alike", slower))
        added = self.residual(spreads) ** 2 - kind**2 + slower**2
        return math.sqrt(max(kind**2 - self.noise(spreads) ** 2, 0.0) + max(added, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRows:
    """Devices, software and models of one group with measured rows.

    Attributes:
        group: `language` or `network`.
        vendors: Of the devices.
        devices: Types.
        models: Kind and vocabulary of each model.
        largest: Devices of the largest job.
    """

    group: str
    software: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    forms: frozenset[str] = frozenset()
    models: frozenset[tuple[str, float]] = frozenset()
    largest: float = 0.0

    @classmethod
    def of(cls, group: str, rows: Mapping[str, Iterable[str]]) -> KnownRows:
        """Return what `rows` of a calibration's residuals say of a group."""
        own = {name: rows.get(f"{group}.{name}", ()) for name in ROWS}
        models = [model.rpartition(" ") for model in own["models"]]
        return cls(
            group=group,
            software=frozenset(own["software"]),
            vendors=frozenset(own["vendors"]),
            devices=frozenset(own["devices"]),
            forms=frozenset(own["forms"]),
            models=frozenset((kind, float(size)) for kind, _, size in models),
            largest=max((float(size) for size in own["largest"]), default=0.0),
        )

    def as_rows(self) -> dict[str, tuple[str, ...]]:
        """Return it as a calibration keeps it."""
        own = {
            "software": tuple(sorted(self.software)),
            "vendors": tuple(sorted(self.vendors)),
            "devices": tuple(sorted(self.devices)),
            "forms": tuple(sorted(self.forms)),
            "models": tuple(f"{kind} {size:.0f}" for kind, size in sorted(self.models)),
            "largest": (f"{self.largest:g}",),
        }
        return {f"{self.group}.{name}": own[name] for name in ROWS}

    def level_spread(self, level: str, spreads: Mapping[str, float]) -> float:
        """Return what is added to the spread of a constant that is found at a level."""
        return spreads.get(level_name(self.group, level), 0.0)

    def knows_model(self, kind: str, vocabulary: float) -> bool:
        """Return whether a model of that kind and vocabulary has rows."""
        return any(
            kind == other and abs(vocabulary - size) <= _PADDING * size
            for other, size in self.models
        )

    def level(self, found: FoundConstant, device: str) -> str:
        """Return the level at which a constant is found: of a device with rows, its own.

        Rows of a device determine the constants of its architecture too; without them, constants
        of its own say no more of its steps than those of its die do.
        """
        if device in self.devices and found.level in LEVELS[:-1]:
            return LEVELS[0]
        return LEVELS[1] if found.level == LEVELS[0] else found.level


@lru_cache(maxsize=8)
def _measured(group: str, rows: tuple[tuple[str, tuple[str, ...]], ...]) -> KnownRows:
    return KnownRows.of(group, dict(rows))


def measured_of(residuals: Residuals, kind: str) -> KnownRows:
    """Return what has rows in the fit of a calibration, for models of a kind."""
    rows = tuple((name, tuple(known)) for name, known in residuals.rows.items())
    return _measured(group_of(kind), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the class of evidence of a job follows from, with what has rows.

    Attributes:
        form: What is trained: all weights of a causal `decoder`, of an `encoder` (not all of its
            attention is causal), of a `recurrent` model (with state-space layers, or without
            attention) or of a `network`, or a `part` of the weights, such as adapters.
        vocabulary: Of its model; 0 without one.
        device, vendor: Type of its slowest ranks, and who makes it.
        devices: How many it uses.
        scripted: As `EvidenceClass.scripted`.
        names_software: The job says its software; otherwise the family stands for any.
    """

    kind: str
    form: str
    vocabulary: float
    software: str
    device: str
    vendor: str
    devices: float
    scripted: bool = False
    names_software: bool = True

    def known(
        self,
        measured: KnownRows,
        shares: Mapping[str, float],
        constants: Mapping[str, tuple[FoundConstant | None, ...]],
    ) -> EvidenceClass:
        """Return what is known of such jobs."""
        rates = (names.PRODUCTS, names.ATTENTION, names.CONVOLUTION)
        found = constants[max(rates, key=lambda name: shares.get(name, 0.0))][0]
        level = LEVELS[-1] if found is None else measured.level(found, self.device)
        return EvidenceClass(
            kind=self.kind,
            level=level if level in LEVELS else LEVELS[-1],
            software=self._software(measured),
            model="known" if measured.knows_model(self.kind, self.vocabulary) else "new",
            form="known" if self.form in measured.forms else "new",
            scripted=self.scripted,
            size="within" if self.devices <= _WITHIN * measured.largest else "beyond",
        )

    @property
    def stated_software(self) -> str:
        """The software as the job has it: runs of one family tell nothing of any other."""
        return self.software if self.names_software else AUTO_SOFTWARE

    def _software(self, measured: KnownRows) -> str:
        named = self.names_software and self.software != GENERIC
        if not named or not has_rows(self.vendor, measured.vendors):
            return GENERIC
        return "measured" if self.software in measured.software else "unmeasured"


def left_open_spreads(assumed: Iterable[str]) -> tuple[float, ...]:
    """Return spreads of the step time by what a job left to its software.

    Args:
        assumed: Sentences such as `sharding zero3, recompute full: source`.
    """
    words = [sentence.partition(":")[0] for sentence in assumed]
    return tuple(
        spread for key, spread in _LEFT_OPEN_SPREADS.items() if any(key in each for each in words)
    )
