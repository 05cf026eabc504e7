"""Shards of today's data with the settings of trials, each made once: two trials that differ in training share theirs.

The file's own settings have the shards of a retrain. What others need is fitted beside the state that the pipeline
uses, which no trial replaces; a retrain with their settings finds both.
"""

from __future__ import annotations

from pathlib import Path

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import FittedState, Link, ShardManifest
from headway.data_contracts.store.errors import ConfigError, EncodingRefused
from headway.tasks.core.context import RunContext
from headway.tasks.rows.heldout_parts import require_parts
from headway.tasks.search.configuration import Configuration, require_same_target
from headway.tasks.search.rungs import require_at_rungs
from headway.tasks.stages.launch import num_training_rows
from headway.tasks.stages.shard import shard_for_trials
from headway.tasks.stages.trial_scores import Scoring
from headway.training.config.shards import ShardSpec
from headway.training.data.shards.skew import SkewRefused
from headway.training.engine.run_documents import mixed_manifests
from headway.training.evaluation.measures import target_of
from headway.training.frozen.mesh_check import require_trainable
from headway.training.frozen.recipe_check import own_methods


class TrialShards:
    """
    Args:
        scoring: with the file's own settings of shards.
        manifest: of these.
    """

    def __init__(self, context: RunContext, scoring: Scoring, manifest: Link) -> None:
        self._context, self._scoring, self._manifest = context, scoring, manifest
        self._made: dict[str, Link] = {}

    def manifest(self, spec: ShardSpec) -> Link:
        """Found, or made now.

        Raises:
            ConfigError: the data cannot be encoded so, or models would predict something else.
        """
        if spec == self._scoring.shards:
            return self._manifest
        key = sha256_of(spec.identity)
        if key not in self._made:
            self._made[key] = self._shards(spec)
        return self._made[key]

    def _shards(self, spec: ShardSpec) -> Link:
        own = self._context.workspace.load(self._manifest, ShardManifest)
        try:
            link = shard_for_trials(self._context, spec, self._scoring.source, own.snapshot, own.receipt)
        except (EncodingRefused, SkewRefused) as error:
            raise ConfigError(
                f"the data cannot be encoded so: {error.what}", where=f"trials: {error.where}", advice=error.advice
            ) from error
        # An encoder of one's own says only now what is predicted.
        require_same_target(self._target(self._manifest), self._target(link), f"the shards {link.short}")
        # While the source still has these rows: trials are ranked later, and a search may go on another night.
        require_parts(self._context, self._scoring.evaluation.ranking_share, self._scoring.source, link)
        return link

    def _target(self, link: Link) -> str:
        workspace = self._context.workspace
        manifest = workspace.load(link, ShardManifest)
        return target_of(manifest.spec["encoder"], workspace.load(manifest.fitted, FittedState).statistics)

    def settled(self, wanted: Configuration, rungs: tuple[int, ...] = (), folder: Path | None = None) -> Configuration:
        """What it comes to once rows are counted, which are made into shards where they are not yet.

        Args:
            rungs: that it is to come to, the last of them its end; none where nothing is compared on the way.
            folder: where a recipe of its own lies; None: in the pipeline file's.

        Raises:
            ConfigError: as `manifest`, or the ranks cannot train it: a pipeline file was looked at when it was loaded,
                another may not be.
        """
        context = self._context

        def require(num_rows: int) -> Configuration:
            training = wanted.training.for_rows(num_rows)
            if rungs:
                require_at_rungs(rungs, training)
            methods = own_methods(training.recipe.name, (str(folder or context.base),))
            require_trainable(training, wanted.shards.encoder, self._scoring.launch.world_size, methods)
            return Configuration(training=training, shards=wanted.shards)

        num_rows = num_training_rows(context, self._manifest)
        # With the rows of the file's own shards first: what cannot be trained at all is not to cost shards.
        settled = require(num_rows)
        manifest = self.manifest(wanted.shards)
        if manifest == self._manifest:
            return settled
        if settled.training.order.mix:
            mixed_manifests(context.workspace, settled.training, context.workspace.load(manifest, ShardManifest))
        return settled if (num_own := num_training_rows(context, manifest)) == num_rows else require(num_own)
